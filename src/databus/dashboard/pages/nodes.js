// One source, and one output: state with the reason, numbers, charts, and what can be done.

import { html } from "/vendor/htm-preact.js";
import { pathOf } from "/api.js";
import { Actions } from "/actions.js";
import { Charts } from "/chart.js";
import { State, Table, Time, Unseen } from "/parts.js";
import { History } from "/lists.js";
import { bytes, count, rate, seconds } from "/words.js";

const Facts = ({ list }) => html`<dl>${list.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

const TABLES = [{ name: "tables", label: "Tables, with commas between", placeholder: "main.orders" }];

const ms = (value) => seconds(value === null || value === undefined ? null : value / 1e3);

const gone = (what) => html`<h1>${what}</h1><p class="trouble">There is no such thing among what you see. <a href="#/flow">Flow</a> has all.</p>`;

export function Output({ status, names: [pipeline, output], rights, onDone }) {
  const found = status.outputs.find((each) => each.pipeline === pipeline && each.output === output);
  if (!found) return gone(`Output ${pipeline} / ${output}`);
  const verb = (name, title, says, more) => ({ verb: name, title, says, name: output, path: `/outputs${pathOf(pipeline, output)}/${name}`, ...more });
  const actions = [
    verb("pause", "Pause", "It rests from the end of its batch, also over restarts, until somebody resumes it."),
    verb("resume", "Resume", "It goes on where its target stands."),
    verb("drain", "Drain", "It writes what the relay has now, and stops then."),
    verb("stop", "Stop", "It rests until the pipeline is started again.", { confirm: output }),
  ];
  const refused = Object.entries(found.refused || {});
  return html`<h1>Output ${pipeline} / ${output}</h1>
    <${Unseen} parts=${status.parts.filter((each) => each.name === pipeline)} />
    <p><${State} state=${found.state} /> ${found.message && html`<span class="why">${found.message}</span>`}</p>
    <${Actions} list=${actions} rights=${rights} state=${found.state} onDone=${onDone} />
    <${Facts} list=${[
      ["Rows a second", `${rate(found.rows_s)}, over 5 min ${rate(found.rows_s_5m)}`],
      ["Lag", `${seconds(found.lag_s)}, ${count(found.lag_rows)} rows`],
      ["The relay holds what comes next", found.held === null || found.held === undefined ? "unknown" : found.held ? "yes" : "no: it has left the log"],
      ["Dead letters", html`<a href="#/letters">${count(found.dead_letters)}</a>`],
      ["Since the pipeline started", `${count(found.rows)} rows in ${count(found.batches)} batches, ${count(found.retries)} retries`],
      ["Last batch", html`<${Time} us=${found.last_batch_us} />`],
      ["Lag was measured", html`<${Time} us=${found.lag_us} />`],
    ]} />
    ${refused.length > 0 && html`<${Table} label="Tables that it refuses" rows=${refused} columns=${[["table", (row) => row[0]], ["why", (row) => row[1]]]} />`}
    <${Charts} key=${found.node} node=${found.node} />
    <h2>Journal</h2>
    <${History} pipeline=${pipeline} output=${output} />`;
}

export function Source({ status, names: [relay, source], rights, onDone }) {
  const found = status.sources.find((each) => each.relay === relay && each.source === source);
  if (!found) return gone(`Source ${relay} / ${source}`);
  const verb = (name, title, says, more) => ({ verb: name, title, says, name: source, path: `/sources${pathOf(relay, source)}/${name}`, ...more });
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
    ${(found.missingTables || []).length > 0 && html`<p class="trouble">Not there: ${found.missingTables.join("; ")}</p>`}
    <${Charts} key=${found.node} node=${found.node} />`;
}
