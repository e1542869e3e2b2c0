/* Verifying many signatures while Python's lock is released once.
 *
 * libsodium verifies one signature a call. Called from Python, a thread needs Python's lock again after each of them,
 * and while another thread plans a batch it waits for the lock longer than it verifies. This loop keeps a second core
 * at work meanwhile. It is optional: cablestore.protocol.crypto does without it where it was not built.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

enum { KEY_SIZE_BYTES = 32, SIGNATURE_SIZE_BYTES = 64 };

/* libsodium's crypto_sign_open(message, message_size, signature | message, its size, public_key): 0 if it is right. */
typedef int (*sign_open)(unsigned char *, unsigned long long *, const unsigned char *, unsigned long long,
                         const unsigned char *);

typedef struct {
    const unsigned char *bytes;
    Py_ssize_t size;
} post;

static int is_signed(sign_open open, const post *p, unsigned char *message)
{
    unsigned long long message_size;

    if (p->size < KEY_SIZE_BYTES + SIGNATURE_SIZE_BYTES)
        return 0;
    return open(message, &message_size, p->bytes + KEY_SIZE_BYTES, (unsigned long long)(p->size - KEY_SIZE_BYTES),
                p->bytes) == 0;
}

static PyObject *are_signed(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    PyObject *raws, *result = NULL;
    Py_ssize_t number, largest = 1;
    post *posts;
    unsigned char *message = NULL;

    /* A tuple, because nobody can take a post out of it while the lock is released. */
    if (!PyArg_ParseTuple(args, "KO!:are_signed", &address, &PyTuple_Type, &raws))
        return NULL;
    number = PyTuple_GET_SIZE(raws);
    posts = PyMem_Calloc((size_t)number + 1, sizeof(post));
    if (posts == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < number; i++) {
        char *bytes;
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(raws, i), &bytes, &posts[i].size) < 0)
            goto done;
        posts[i].bytes = (const unsigned char *)bytes;
        if (posts[i].size > largest)
            largest = posts[i].size;
    }
    message = PyMem_Malloc((size_t)largest);
    if (message == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    result = PyBytes_FromStringAndSize(NULL, number);
    if (result != NULL) {
        char *found = PyBytes_AS_STRING(result);
        sign_open open = (sign_open)(uintptr_t)address;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < number; i++)
            found[i] = (char)is_signed(open, &posts[i], message);
        Py_END_ALLOW_THREADS
    }
done:
    PyMem_Free(message);
    PyMem_Free(posts);
    return result;
}

static PyMethodDef methods[] = {
    {"are_signed", are_signed, METH_VARARGS, "One byte for each post, 1 where its signature is right, else 0."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_signatures", "Verifies many signatures while Python's lock is released once.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__signatures(void)
{
    return PyModuleDef_Init(&definition);
}
