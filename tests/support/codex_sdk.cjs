// Codex' own JavaScript client against an endpoint: `node codex_sdk.cjs URL LARGE_FILE COPY`. Prints what it got as JSON.
const fs = require("node:fs");
const path = require("node:path");
const { pipeline } = require("node:stream/promises");
const { Readable } = require("node:stream");
const { createRequire } = require("node:module");

const from = createRequire(path.join(path.resolve(process.env.CABLESTORE_NODE_MODULES), "here.js"));
const { Codex } = from("@codex-storage/sdk-js");
const { NodeUploadStrategy } = from("@codex-storage/sdk-js/node");

const good = (answer) => {
  if (answer.error) throw new Error(`${answer.data.message} (${answer.data.code})`);
  return answer.data;
};

async function main([url, large, copy]) {
  const codex = new Codex(url);
  const data = codex.data;
  const told = {};
  const up = async (body, names) => good(await data.upload(new NodeUploadStrategy(body, names)).result);
  told.cid = await up("payload", { filename: "hello.txt", mimetype: "text/plain" });
  told.unnamed = await up(Buffer.from("payload"));
  told.large = await up(fs.createReadStream(large), { filename: "large.bin", mimetype: "application/octet-stream" });
  told.cids = good(await data.cids()).content.map((item) => item.cid);
  told.space = good(await data.space());
  const local = good(await data.localDownload(told.cid));
  told.type = local.headers.get("content-type");
  told.disposition = local.headers.get("content-disposition");
  told.local = await local.text();
  told.stream = await good(await data.networkDownloadStream(told.cid)).text();
  told.network = good(await data.networkDownload(told.cid));
  told.manifest = good(await data.fetchManifest(told.cid));
  await pipeline(Readable.fromWeb(good(await data.localDownload(told.large)).body), fs.createWriteStream(copy));
  told.info = good(await codex.debug.info());
  const refused = async (answer) => ({ error: answer.error, code: answer.data.code, message: answer.data.message });
  told.bad = await refused(await data.localDownload("nonsense"));
  told.badName = await refused(await data.upload(new NodeUploadStrategy("x", { filename: "a/b" })).result);
  told.empty = await refused(await data.upload(new NodeUploadStrategy("")).result);
  if (typeof data.delete === "function") told.deleted = !(await data.delete(told.cid)).error;
  told.gone = await refused(await data.localDownload(told.cid));
  console.log(JSON.stringify(told));
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
