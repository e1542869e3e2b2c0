"""Access to the page of a store: the token, Host and Origin, and addresses of other machines."""

from __future__ import annotations

from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from inspecting import TOKEN, events_of, inspected, request
from people import ANN
from serving import cablestore

from cablestore import CableStore, limits
from cablestore.errors import ArgumentError
from cablestore.inspect.settings import InspectSettings
from cablestore.peers import Address

PAGES = ("/", "/keys", "/events", "/channels?format=json", "/nowhere")


def cookie_of(text: str) -> str:
    [(name, found)] = SimpleCookie(text).items()
    assert found["httponly"]
    assert found["samesite"] == "Strict"
    return f"{name}={found.value}"


def test_a_page_requires_the_token() -> None:
    with CableStore.in_memory(identity=ANN.identity) as store, inspected(store) as site:
        store.post("secret-channel", "text")
        for path in PAGES:
            for token in (None, "", "wrong", TOKEN + "x", TOKEN[:-1]):
                found = site.get(path, token=token)
                assert found.status == 403
                assert "secret-channel" not in found.text
            assert site.get(f"{path}{'&' if '?' in path else '?'}token=wrong", token=None).status == 403
            assert (
                site.get(path, token=None, Cookie=f"cablestore-inspect-{site.server.address.port}=wrong").status == 403
            )
        assert site.get("/").status == 200


def test_the_link_sets_a_cookie_and_redirects_without_the_token() -> None:
    with CableStore.in_memory() as store, inspected(store) as site:
        entered = request(f"{site.url}/channels?sort=name&token={TOKEN}", token=None)
        assert entered.status == 200
        assert 'url=/channels?sort=name"' in entered.text
        cookie = cookie_of(entered.headers["Set-Cookie"])
        assert site.get("/", token=None, Cookie=cookie).status == 200
        with inspected(store) as other:  # another port of the same host has another cookie
            assert other.get("/", token=None, Cookie=cookie).status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Host": "localhost.evil.example:PORT"}, 403),
        ({"Host": "localhost:PORT"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:PORT"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
    ],
)
def test_requests_of_other_sites_are_rejected_even_after_dns_rebinding(headers: dict[str, str], status: int) -> None:
    with CableStore.in_memory() as store, inspected(store) as site:
        port = str(site.server.address.port)
        sent = {name: value.replace("PORT", port) for name, value in headers.items()}
        assert site.get("/", **sent).status == status
        assert site.get("/static/style.css", **sent).status == status


def test_every_response_has_security_headers_and_writes_are_rejected() -> None:
    with CableStore.in_memory() as store, inspected(store) as site:
        answers = [
            *(site.get(path) for path in ("/", "/nowhere", "/static/page.js", "/static/../server.py", "/post?hash=x")),
            site.get("/", token=None),
            *(site.get("/", method=method) for method in ("POST", "PUT", "DELETE", "OPTIONS")),
        ]
        assert [each.status for each in answers] == [200, 404, 200, 404, 400, 403, 405, 405, 405, 405]
        for each in answers:
            policy = each.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
            assert "unsafe" not in policy
            assert each.headers["X-Content-Type-Options"] == "nosniff"
            assert each.headers["Referrer-Policy"] == "no-referrer"


def test_the_host_name_of_a_proxy_is_accepted() -> None:
    with CableStore.in_memory() as store, inspected(store, proxy_name="Store.example") as site:
        assert site.link == f"https://Store.example/?token={TOKEN}"
        assert site.get("/", Host="store.example", Origin="https://store.example").status == 200
        assert site.get("/", Host="store.example", Origin="https://evil.example").status == 403
        entered = site.get(f"/?token={TOKEN}", token=None, Host="store.example")
        assert "Secure" in entered.headers["Set-Cookie"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
@pytest.mark.parametrize("given", [{}, {"token": TOKEN}, {"proxy_name": "store.example"}])
def test_addresses_of_other_machines_require_a_token_and_a_proxy(host: str, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="other machines can reach"):
        InspectSettings(Address(host, 1), **given)
    InspectSettings(Address(host, 1), token=TOKEN, proxy_name="store.example")


def test_a_random_token_differs_and_a_short_one_is_rejected() -> None:
    one, two = (InspectSettings(Address("127.0.0.1", 0)) for _ in range(2))
    assert one.token != two.token
    assert len(one.token) > 20
    assert one.token not in repr(one)
    with pytest.raises(ArgumentError, match="characters"):
        InspectSettings(Address("127.0.0.1", 0), token="short")


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "--listen", "0.0.0.0:0"),
        ("inspect", "--listen", "0.0.0.0:0", "--token", TOKEN),
        ("inspect", "--token", "short"),
        ("inspect", "--token", "@missing"),
        ("inspect", "--listen", "127.0.0.1:99999"),
        ("serve", "--create", "--listen", "127.0.0.1:0", "--inspect", "0.0.0.0:0"),
        ("serve", "--create", "--listen", "127.0.0.1:0", "--inspect", "127.0.0.1:0", "--inspect-token", "short"),
    ],
)
def test_the_command_rejects_invalid_settings_in_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    cablestore("init", store=tmp_path / "store")
    found = cablestore(*arguments, store=tmp_path / "store")
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()[-1:]) == 1
    assert "Traceback" not in found.stderr


def test_the_number_of_live_pages_is_limited() -> None:
    with CableStore.in_memory() as store, inspected(store) as site:
        opened = [events_of(site) for _ in range(limits.MAX_LIVE_PAGES)]
        for each in opened:
            each.__enter__()
        try:
            assert site.get("/events").status == 503
            assert site.get("/").status == 200
        finally:
            for each in opened:
                each.__exit__(None, None, None)
