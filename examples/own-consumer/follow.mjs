// Follows a relay with nothing but Node 18 or newer: JSON lines over HTTP, as docs/http.md says.
//
//     node follow.mjs http://127.0.0.1:11115 shop place.json [--once]
//
// prints every change and keeps its place in place.json, so that the next run goes on there. Without --once it stays on.
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [url, physical, file, once] = process.argv.slice(2);
const token = process.env.DATABUS_TOKEN;
let place = existsSync(file) ? readFileSync(file, "utf8") : null;

function save(position) {
  place = JSON.stringify(position);
  writeFileSync(`${file}.new`, place);
  renameSync(`${file}.new`, file);
}

function take(line) {
  if (line._position) save(line._position); // all lines before it are done
  else if (line._control) console.log(line._control.kind, line._source);
  else {
    const values = Object.entries(line).filter(([name]) => !name.startsWith("_"));
    console.log(line._change_type, line._source, JSON.stringify(Object.fromEntries(values)));
  }
}

async function follow() {
  // As text, integers beyond 2^53 keep their digits: BigInt(value) reads them.
  const query = new URLSearchParams({ physical, output: "json", big_integers: "string" });
  if (once) query.set("wait_ms", "1000");
  else query.set("follow", "1");
  if (place) query.set("from", place);
  else query.set("start", "beginning");
  const answer = await fetch(`${url}/stream?${query}`, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  if (!answer.ok) {
    const { error, message, oldest } = await answer.json();
    if (answer.status === 429 || answer.status === 503) throw new Error(message);
    console.error(`${answer.status} ${error}: ${message}`);
    if (answer.status === 410) console.error(`The log goes back to SCN ${oldest}: read the tables anew.`);
    process.exit(answer.status === 410 ? 3 : 2);
  }
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of answer.body) {
    const lines = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) take(JSON.parse(line));
  }
}

for (;;) {
  try {
    await follow();
    if (once) break;
  } catch (error) {
    // The relay is away, or was not read in time: go on after the last place that was saved.
    console.error(error.cause?.message ?? error.message);
    if (once) process.exit(1);
  }
  await sleep(1000);
}
