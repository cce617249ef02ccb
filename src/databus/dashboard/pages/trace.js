// One row's changes, and what became of each in every output; and whether batches follow each other.

import { html, useState } from "/vendor/htm-preact.js";
import { get } from "/api.js";
import { Table, Time, Trouble } from "/parts.js";
import { count } from "/words.js";

const LOOKS = { written: "good", superseded: "good", lost: "bad", "dead letter": "bad", "not yet": "busy" };
const SPANS = [["3600", "the last hour"], ["86400", "the last day"], ["604800", "the last week"], ["0", "all that the log has"]];
const LIMIT = 100;
const SEQ_DONE = 2 ** 40 - 1;

const place = (pair) => (pair[1] === SEQ_DONE ? String(pair[0]) : pair.join("/"));

const Fate = ({ fate }) => html`<b class=${LOOKS[fate.verdict] || "rest"}>${fate.verdict}</b>
  ${fate.at_us && html` <${Time} us=${fate.at_us} />`}${fate.batch && `, in the batch from ${place(fate.batch[0])} to ${place(fate.batch[1])}`}${fate.why && `: ${fate.why}`}`;

const image = (row, name) => (row.left_out ? name === "after" && `${count(row.left_out)} characters, not shown: look at fewer changes` : row[name] && html`<code>${JSON.stringify(row[name])}</code>`);

const columns = (outputs) => [
  ["committed", (row) => html`<${Time} us=${row.commit_us} />`],
  ["place", (row) => place(row.pair)],
  ["what", (row) => row.kind],
  ["before", (row) => image(row, "before")],
  ["after", (row) => image(row, "after")],
  ...outputs.map((name) => [name, (row) => html`<${Fate} fate=${row.outputs[name]} />`]),
];

const CHAINS = [
  ["output", (row) => row.output],
  ["of", (row) => row.physical],
  ["from", (row) => place(row.start)],
  ["to", (row) => place(row.end)],
  ["batches", (row) => count(row.batches), true],
  ["rows", (row) => count(row.rows), true],
  ["written", (row) => count(Object.values(row.written).reduce((sum, each) => sum + each, 0)), true],
  ["in the log", (row) => (row.log_rows === null ? row.why_unknown || "unknown" : count(row.log_rows)), true],
  ["verdict", (row) => html`<b class=${row.is_whole ? "good" : "bad"}>${row.is_whole ? "whole" : "broken"}</b>`],
  ["breaks", (row) => row.breaks.map(([start, end, table]) => `${table}${table ? ": " : ""}from ${place(start)} to ${place(end)}`).join("; ")],
];

export function Trace({ status, rights }) {
  const [found, put] = useState({ changes: null, chains: null });
  const [of, say] = useState("");
  const [error, fail] = useState("");
  const [isBusy, work] = useState(false);
  const pipelines = status.parts.filter((each) => each.kind === "pipeline");
  const ask = async (path, query) => {
    work(true);
    fail("");
    try {
      const answer = await get(path, query);
      put((before) => ({ ...before, ...answer }));
    } catch (problem) {
      fail(problem.message);
    }
    work(false);
  };
  const send = async (event) => {
    event.preventDefault();
    const asked = Object.fromEntries(new FormData(event.target));
    put((before) => ({ ...before, changes: null })); // what is there is of another row
    say(`${asked.table} ${asked.key}`);
    await ask("/trace", { ...asked, limit: LIMIT });
  };
  const check = (event) => ask("/batches", { pipeline: new FormData(event.target.form).get("pipeline") });
  const outputs = found.changes && found.changes.length ? Object.keys(found.changes[0].outputs) : [];
  return html`<h1>Trace</h1>
    <form onSubmit=${send} class="asks">
      <label>Pipeline <select name="pipeline">${pipelines.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label>
      <label>Table <input name="table" required autocomplete="off" placeholder="main.orders" /></label>
      <label>Key <input name="key" required autocomplete="off" placeholder="id=17" /></label>
      <label>Since <select name="since_s">${SPANS.map(([value, title]) => html`<option key=${value} value=${value}>${title}</option>`)}</select></label>
      <div class="actions">
        ${rights.includes("rows") && html`<button type="submit" class="main" disabled=${isBusy}>Trace</button>`}
        <button type="button" onClick=${check} disabled=${isBusy}>Check the batches</button>
      </div>
    </form>
    ${!rights.includes("rows") && html`<p>Rows are traced by those who have the right <code>rows</code>.</p>`}
    <${Trouble} text=${error} />
    ${isBusy && html`<p class="wait" role="status">Looking…</p>`}
    ${found.changes && html`<${Table} label=${`Changes of ${of}, the newest ${found.changes.length < LIMIT ? "first" : `${LIMIT}; older ones are not shown`}`} columns=${columns(outputs)} rows=${found.changes} empty="The log has no change of this row in this time." />`}
    ${found.changes && found.changes.some((row) => Object.values(row.outputs).some((fate) => fate.verdict === "unknown")) && html`<p>Filters of typed rows (<code>sql</code>, <code>python</code>) are not tried here; a command does that, in a Spark session of its own: <code>${found.command}</code></p>`}
    ${found.chains && html`<${Table} label="Batches" columns=${CHAINS} rows=${found.chains} empty="No batches have been written since the journal began." />`}`;
}
