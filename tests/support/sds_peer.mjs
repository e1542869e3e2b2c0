// A member of a causal log as the npm package @waku/sds plays it: `node sds_peer.mjs`, with CABLESTORE_NODE_MODULES naming a
// folder with the package. A line of JSON comes in, a line of JSON goes out: {op, ...} -> {value, out, events}, or {error}.
// `out` has what is to be broadcast, `events` what the package told meanwhile. Bytes are hex, large numbers are text.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const root = path.resolve(process.env.CABLESTORE_NODE_MODULES, "@waku", "sds", "dist");
const load = (name) => import(pathToFileURL(path.join(root, name)).href);
const { Message, MessageChannel, MessageChannelEvent } = await load("index.js");
const { DefaultBloomFilter } = await load("bloom_filter/bloom.js");
const { hashN } = await load("nim_hashn/nim_hashn.mjs");
const { RepairManager } = await load("message_channel/repair/repair.js");
const { combinedHash } = await load("message_channel/repair/utils.js");

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const bytes = (text) => new Uint8Array(Buffer.from(text, "hex"));
const optional = (value, convert) => (value === undefined || value === null ? undefined : convert(value));

const entryOut = (entry) => ({
  message_id: entry.messageId,
  retrieval_hint: optional(entry.retrievalHint, hex),
  sender_id: entry.senderId,
});
const entryIn = (entry) => ({
  messageId: entry.message_id,
  retrievalHint: optional(entry.retrieval_hint, bytes),
  senderId: entry.sender_id ?? undefined,
});
const messageOut = (message) => ({
  kind: message.constructor.name,
  message_id: message.messageId,
  channel_id: message.channelId,
  sender_id: message.senderId,
  lamport: optional(message.lamportTimestamp, String),
  causal_history: message.causalHistory.map(entryOut),
  bloom: optional(message.bloomFilter, hex),
  repair_request: (message.repairRequest ?? []).map(entryOut),
  content: optional(message.content, hex),
});
const messageIn = (message) =>
  new Message(
    message.message_id,
    message.channel_id,
    message.sender_id,
    message.causal_history.map(entryIn),
    optional(message.lamport, BigInt),
    optional(message.bloom, bytes),
    optional(message.content, bytes),
    message.repair_request.map(entryIn),
  );

// What an event tells: a message by its id, a failed task by its error, all else as it is.
const detailOut = (detail) => {
  if (detail instanceof Message) return detail.messageId;
  if (detail?.command !== undefined) return { command: detail.command, error: String(detail.error) };
  return detail ?? null;
};

const plain = (_, value) => {
  if (typeof value === "bigint") return String(value);
  return value instanceof Uint8Array ? hex(value) : value;
};

let channel;
let out = [];
let events = [];

const broadcast = (hint) => async (message) => {
  out.push(hex(message.encode()));
  return { success: true, retrievalHint: hint };
};

const bloomOf = ({ ids, capacity, error }) => {
  const filter = new DefaultBloomFilter({ capacity, errorRate: error });
  ids.forEach((id) => filter.insert(id));
  return filter;
};

const operations = {
  init({ channel_id, sender_id, options }) {
    channel = new MessageChannel(channel_id, sender_id, options);
    // Two events are told under their names in the enum instead of their values.
    for (const name of new Set(Object.entries(MessageChannelEvent).flat())) {
      channel.addEventListener(name, (event) => events.push([name, detailOut(event.detail)]));
    }
  },
  clock({ now_ms }) {
    Date.now = () => now_ms;
  },
  async send({ content, hint }) {
    channel.pushOutgoingMessage(bytes(content), broadcast(optional(hint, bytes)));
    await channel.processTasks();
  },
  async ephemeral({ content }) {
    await channel.pushOutgoingEphemeralMessage(bytes(content), broadcast());
    await channel.processTasks();
  },
  async recv({ data, hint }) {
    const message = Message.decode(bytes(data));
    if (message === undefined) return null;
    channel.pushIncomingMessage(message, optional(hint, bytes));
    await channel.processTasks();
    return message.constructor.name;
  },
  async sync() {
    return channel.pushOutgoingSyncMessage(broadcast());
  },
  // What an application does from time to time: deliver what can be, send again what nobody acknowledged, repair.
  async sweep({ resend }) {
    const missing = channel.sweepIncomingBuffer().map(entryOut);
    const { unacknowledged, possiblyAcknowledged } = channel.sweepOutgoingBuffer();
    if (resend) out.push(...[...unacknowledged, ...possiblyAcknowledged].map((message) => hex(message.encode())));
    const repaired = await channel.sweepRepairIncomingBuffer(broadcast());
    const ids = (messages) => messages.map((message) => message.messageId);
    return {
      missing,
      unacknowledged: ids(unacknowledged),
      possibly_acknowledged: ids(possiblyAcknowledged),
      repaired: ids(repaired),
    };
  },
  // Its fields are private in name only.
  state() {
    return {
      lamport: String(channel.lamportTimestamp),
      history: channel.localHistory.slice(0).map((message) => [message.messageId, String(message.lamportTimestamp)]),
      outgoing: channel.outgoingBuffer.map((message) => message.messageId),
      possible_acks: Object.fromEntries(channel.possibleAcks),
      incoming: channel.incomingBuffer.map((message) => message.messageId),
      filter: hex(channel.filter.toBytes()),
      requests: (channel.repairManager?.outgoingBuffer.getItems() ?? []).map((item) => [
        item.entry.messageId,
        item.tReq,
        item.requested,
      ]),
      responses: (channel.repairManager?.incomingBuffer.getItems() ?? []).map((item) => [item.entry.messageId, item.tResp]),
    };
  },
  contains({ ids }) {
    return ids.map((id) => channel.filter.lookup(id));
  },
  decode({ data }) {
    const message = Message.decode(bytes(data));
    return message === undefined ? null : messageOut(message);
  },
  encode({ message }) {
    return hex(messageIn(message).encode());
  },
  bloom(options) {
    return hex(bloomOf(options).toBytes());
  },
  lookup({ data, ids, capacity, error }) {
    const filter = DefaultBloomFilter.fromBytes(bytes(data), { capacity, errorRate: error });
    return ids.map((id) => filter.lookup(id));
  },
  hash({ texts, count, bits }) {
    return texts.map((text) => Array.from({ length: count }, (_, n) => hashN(text, n, bits)));
  },
  repair_times({ rows, t_min_ms, t_max_ms, groups }) {
    return rows.map(([participant, sender, message]) => {
      const manager = new RepairManager(participant, { tMin: t_min_ms, tMax: t_max_ms, numResponseGroups: groups });
      return {
        hash: String(combinedHash(participant, message)),
        request_ms: manager.calculateTReq(message, 0),
        response_ms: manager.calculateTResp(sender, message, 0),
        in_group: manager.isInResponseGroup(sender, message),
      };
    });
  },
};

for await (const line of readline.createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { op, ...more } = JSON.parse(line);
  if (op === "quit") break;
  out = [];
  events = [];
  let answer;
  try {
    answer = { value: (await operations[op](more)) ?? null, out, events };
  } catch (error) {
    answer = { error: String(error?.stack ?? error), out, events };
  }
  process.stdout.write(`${JSON.stringify(answer, plain)}\n`);
}
