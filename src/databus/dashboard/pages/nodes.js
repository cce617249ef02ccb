// One source, and one output: state with the reason, numbers, charts, and what can be done.

import { html } from "/vendor/htm-preact.js";
import { pathOf } from "/api.js";
import { Actions } from "/actions.js";
import { Charts } from "/chart.js";
import { Lineage } from "/lineage.js";
import { State, Table, Time, Trouble, Unseen, useTables } from "/parts.js";
import { History } from "/lists.js";
import { bytes, count, least, rate, seconds } from "/words.js";

const Facts = ({ list }) => html`<dl>${list.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

const TABLES = [{ name: "tables", label: "Tables, with commas between", placeholder: "main.orders" }];

const LIMITS = [
  { name: "rows", label: "Rows in a batch at most", type: "number", min: 1, value: 1000, required: false },
  { name: "bytes", label: "Bytes in a batch at most", type: "number", min: 1, required: false },
];
const REBUILT = "The output rests, the table is removed from its target, and read again from its beginning.";

// The bound of the bucket in which a share of all batches is, since the pipeline started.
function within(visible, share) {
  if (!visible || !visible.count) return "unknown";
  const bounds = Object.entries(visible.buckets).map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count]);
  const [bound] = bounds.sort(([one], [other]) => one - other).find(([, count]) => count >= share * visible.count);
  return bound === Infinity ? "more than 30 min" : seconds(bound);
}

const ms = (value) => seconds(value === null || value === undefined ? null : value / 1e3);

const gone = (what) => html`<h1>${what}</h1><p class="trouble">There is no such thing among what you see. <a href="#/flow">Flow</a> has all.</p>`;

export function Output({ status, names: [pipeline, output], rights, onDone }) {
  const found = status.outputs.find((each) => each.pipeline === pipeline && each.output === output);
  if (!found) return gone(`Output ${pipeline} / ${output}`);
  const verb = (name, title, says, more) => ({ verb: name, title, says, name: `${pipeline} / ${output}`, path: `/outputs${pathOf(pipeline, output)}/${name}`, ...more });
  const actions = [
    verb("pause", "Pause", "It rests from the end of its batch, also over restarts, until somebody resumes it."),
    verb("resume", "Resume", "It goes on where its target stands."),
    verb("drain", "Drain", "It writes what the relay has now, and stops then."),
    verb("throttle", "Throttle", "It writes slowly until it is resumed, or the pipeline started again.", { fields: LIMITS }),
    verb("stop", "Stop", "It rests until the pipeline is started again.", { confirm: output }),
  ];
  const slow = Object.entries(found.throttle || {}).map(([name, most]) => `${count(most)} ${name} a batch`);
  const refused = Object.entries(found.refused || {});
  return html`<h1>Output ${pipeline} / ${output}</h1>
    <${Unseen} parts=${status.parts.filter((each) => each.name === pipeline)} />
    <p><${State} state=${found.state} /> ${found.message && html`<span class="why">${found.message}</span>`}</p>
    <${Actions} list=${actions} rights=${rights} state=${found.state} onDone=${onDone} />
    <${Facts} list=${[
      ["Rows a second", `${rate(found.rows_s)}, over 5 min ${rate(found.rows_s_5m)}`],
      ["Lag", `${least(seconds(found.lag_s), found.lag_is_least)}, ${least(count(found.lag_rows), found.lag_rows_is_least)} rows`],
      ["Throttled to", slow.join(", ") || "no"],
      ["The relay holds what comes next", found.held === null || found.held === undefined ? "unknown" : found.held ? "yes" : "no: it has left the log"],
      ["Dead letters", html`<a href="#/letters">${count(found.dead_letters)}</a>`],
      ["Since the pipeline started", `${count(found.rows)} rows in ${count(found.batches)} batches, ${count(found.retries)} retries`],
      ["From commit to visible, of batches", `half within ${within(found.visible, 0.5)}, 95 % within ${within(found.visible, 0.95)}`],
      ["Last batch", html`<${Time} us=${found.last_batch_us} />`],
      ["Lag was measured", html`<${Time} us=${found.lag_us} />`],
    ]} />
    ${refused.length > 0 && html`<${Table} label="Tables that it refuses" rows=${refused} columns=${[["table", (row) => row[0]], ["why", (row) => row[1]]]} />`}
    <${Charts} key=${found.node} node=${found.node} now_us=${status.at_us} />
    <${Tables} pipeline=${pipeline} output=${output} state=${found.state} rights=${rights} onDone=${onDone} />
    <h2>Journal</h2>
    <${History} pipeline=${pipeline} output=${output} />`;
}

// Tables of which something was written since the start, each of which can be made anew.
function Tables({ pipeline, output, state, rights, onDone }) {
  const [found, error, chooser] = useTables(`/outputs${pathOf(pipeline, output)}/tables`, 10_000);
  const actions = (table) => [{
    verb: "rebuild", title: "Rebuild", name: `${table} of ${pipeline} / ${output}`, says: REBUILT, confirm: table, right: "admin",
    path: `/tables${pathOf(pipeline, output, table)}/rebuild`,
  }];
  const columns = [
    ["table", (row) => row],
    ["actions", (row) => html`<${Actions} list=${actions(row)} rights=${rights} state=${state} onDone=${onDone} />`],
  ];
  return html`<h2>Tables</h2><${Trouble} text=${error} />${chooser}
    <${Table} label="Tables that it has written" columns=${columns} rows=${found ? found.tables : []} empty=${found ? "Nothing was written since the pipeline started." : "Asking…"} />
    ${found && found.more > 0 && html`<p>${count(found.more)} more, of which fewer rows were written, are not in this list. <code>databus rebuild</code> takes any table.</p>`}`;
}

const CONSUMERS = [
  ["client", (row) => row.client],
  ["reads", (row) => row.sources],
  ["at SCN", (row) => `${row.scn ?? "–"}${row.is_at_end ? ", the end" : ""}`],
  ["sent", (row) => bytes(row.bytes)],
  ["asked last", (row) => html`<${Time} us=${row.seen_us} />`],
];
const READING = [
  ["table", (row) => row.table],
  ["rows", (row) => count(row.rows), true],
  ["of about", (row) => count(row.of), true],
  ["rest", (row) => seconds(row.leftS), true],
  ["waits for", (row) => row.says],
];

// What one version of a table has that the one before had not, and the other way round.
function changeOf(version, before) {
  if (!before) return "";
  const told = (each) => `${each.name} ${each.type}`;
  const [now, then] = [version.columns.map(told), before.columns.map(told)];
  const come = now.filter((each) => !then.includes(each)).map((each) => `+ ${each}`);
  const gone = then.filter((each) => !now.includes(each)).map((each) => `− ${each}`);
  return [...come, ...gone].join(", ") || "order, key or nullability";
}

const SCHEMAS = (actions) => [
  ["table", (row) => row.table],
  ["key", (row) => row.version.key.join(", ") || "none"],
  ["columns", (row) => html`<details><summary>${row.version.columns.length}</summary>${row.version.columns.map((each) => `${each.name} ${each.type}`).join(", ")}</details>`],
  ["versions", (row) => html`<details><summary>${row.versions.length}</summary>${row.versions.map((each, at) => html`<div key=${at}>${each.version}: ${changeOf(each, row.versions[at - 1])}</div>`)}</details>`],
  ["actions", actions],
];

function SourceTables({ relay, source, status, reading, rights, onDone }) {
  const [found, error, chooser] = useTables(`/sources${pathOf(relay, source)}`, 10_000);
  const list = (table) => {
    const more = { name: table, path: `/sources${pathOf(relay, source)}/snapshot`, fields: [{ name: "tables", label: "Table", value: table }] };
    const read = { verb: "snapshot", title: "Read again", says: "The table is read whole, while changes go on.", ...more };
    const end = { verb: "cancel", title: "Stop reading", method: "DELETE", says: "The reading ends where it is; copies keep what they have.", ...more };
    return reading.includes(table) ? [end] : [read];
  };
  const actions = (row) => html`<${Actions} list=${list(row.table)} rights=${rights} state=${status} onDone=${onDone} />`;
  const rows = (found ? found.tables : []).map((each) => ({ ...each, version: each.versions[each.versions.length - 1] }));
  return html`<h2>Tables</h2><${Trouble} text=${error} />${chooser}
    <${Table} label="Tables, with the versions of their schemas" columns=${SCHEMAS(actions)} rows=${rows} empty=${found ? "Nothing is captured yet." : "Asking…"} />
    <h2>Consumers</h2>
    <${Table} label="Who reads it now" columns=${CONSUMERS} rows=${found ? found.consumers : []} empty=${found ? "Nobody follows it now." : "Asking…"} />`;
}

export function Source({ status, names: [relay, source], rights, onDone }) {
  const found = status.sources.find((each) => each.relay === relay && each.source === source);
  if (!found) return gone(`Source ${relay} / ${source}`);
  const verb = (name, title, says, more) => ({ verb: name, title, says, name: `${relay} / ${source}`, path: `/sources${pathOf(relay, source)}/${name}`, ...more });
  const actions = [
    verb("pause", "Pause", "It is captured no further. The database keeps the changes for as long as its retention lasts."),
    verb("resume", "Resume", "Capture goes on; one that is suspended is tried again at once."),
    verb("snapshot", "Read tables again", "The tables are read whole, while changes go on.", { fields: TABLES }),
  ];
  return html`<h1>Source ${relay} / ${source}</h1>
    <${Unseen} parts=${status.parts.filter((each) => each.name === relay)} />
    <p><${State} state=${found.status} /> ${found.message && html`<span class="why">${found.message}</span>`}</p>
    ${found.remedy && html`<p>To go on: <code>databus ${found.remedy}</code></p>`}
    <${Actions} list=${actions} rights=${rights} state=${found.status} onDone=${onDone} />
    <${Facts} list=${[
      ["Kind", found.type || "unknown"],
      ["Captured", `${rate(found.rows_s)} rows, ${bytes(found.bytes_s)}/s; over 5 min ${rate(found.rows_s_5m)} rows`],
      ["Lag", `${ms(found.lagMs)}, ${count(found.lagChanges)} changes, ${bytes(found.lagBytes)}`],
      ["The database drops what is not captured in", ms(found.retentionLeftMs)],
      ["In this state since", html`<${Time} us=${found.sinceMs * 1e3} />`],
      ["SCN", found.SCN === null || found.SCN === undefined ? "none yet" : String(found.SCN)],
      ["Snapshots under way", (found.snapshots || []).join(", ") || "none"],
      ["Rows of snapshots, restarts", `${count(found.snapshotRows)}, ${count(found.restarts)}`],
    ]} />
    ${(found.snapshotProgress || []).length > 0 && html`<${Table} label="Snapshots under way" columns=${READING} rows=${found.snapshotProgress} />`}
    ${(found.missingTables || []).length > 0 && html`<p class="trouble">Not there: ${found.missingTables.join("; ")}</p>`}
    <${Charts} key=${found.node} node=${found.node} now_us=${status.at_us} />
    <${SourceTables} key=${`${relay}/${source}`} relay=${relay} source=${source} status=${found.status} reading=${found.snapshots || []} rights=${rights} onDone=${onDone} />
    <${Lineage} key=${`${found.node} lineage`} source=${source} />`;
}
