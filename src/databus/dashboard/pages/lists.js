// What happened: journal, audit log, dead letters, operations.

import { html, useState } from "/vendor/htm-preact.js";
import { Actions } from "/actions.js";
import { pathOf } from "/api.js";
import { Table, Time, Trouble, Unanswered, useAnswer } from "/parts.js";
import { count, usOf } from "/words.js";

const EVERY_MS = 5_000;

const told = (event) => {
  if (event.event === "rows") return `${count(event.rows)} rows in ${count(event.batches)} batches`;
  if (event.event === "control") return `${event.kind} ${event.ddl || event.reason || ""}`;
  return event.message || event.problem || "";
};

const of = (event) => event.output || event.source || (event.outputs || []).join(", ");

const tables = (event) => Object.entries(event.tables || {}).map(([name, rows]) => `${name || "others"}: ${count(rows)}`).join(", ");

const JOURNAL = [
  ["at", (row) => html`<${Time} us=${row.at_us} />`],
  ["pipeline", (row) => row.where],
  ["event", (row) => row.event],
  ["of", of],
  ["what", told],
  ["tables", tables],
];

export function History({ pipeline, output }) {
  const [found, error] = useAnswer("/journal", { pipeline, output, limit: 200 }, EVERY_MS);
  return html`<${Trouble} text=${error} /><${Unanswered} found=${found && found.unanswered} />
    <${Table} label="What happened, the newest first" columns=${JOURNAL} rows=${found ? found.events : []} empty=${found ? "Nothing yet." : "Asking…"} />`;
}

export const Journal = () => html`<h1>Journal</h1><${History} />`;

const AUDIT = [
  ["at", (row) => html`<${Time} us=${usOf(row.at)} />`],
  ["where", (row) => row.where],
  ["who", (row) => row.who.principal || row.who.access || row.who.asker || row.who.client || ""],
  ["from", (row) => row.who.address || ""],
  ["did", (row) => row.action],
  ["to", (row) => row.asked.target || [].concat(row.asked.outputs || []).join(", ") || ""],
  ["why", (row) => row.asked.reason || ""],
  ["result", (row) => row.result],
];

export function Audit() {
  const [found, error] = useAnswer("/audit", { limit: 200 }, EVERY_MS);
  return html`<h1>Audit</h1><${Trouble} text=${error} /><${Unanswered} found=${found && found.unanswered} />
    <${Table} label="Who did what, the newest first" columns=${AUDIT} rows=${found ? found.entries : []} empty=${found ? "Nothing yet." : "Asking…"} />`;
}

function actionsOf({ pipeline, output, table, count: letters }) {
  const verb = (name, title, says, more) => ({
    verb: name, title, says, name: `${letters} of ${pipeline} / ${output} ${table}`, path: `/letters${pathOf(pipeline, output)}/${name}`,
    fields: [{ name: "tables", label: "Of these tables", value: table, readonly: true }], also: { count: letters }, ...more,
  });
  return [
    verb("replay", "Replay", "The rows are written once more; those that are refused again stay."),
    verb("drop", "Drop", "They are forgotten: the target never gets them.", { confirm: output, right: "admin" }),
  ];
}

const COUNTS = (look, rights, onDone) => [
  ["pipeline", (row) => row.pipeline],
  ["output", (row) => row.output],
  ["table", (row) => row.table],
  ["rows", (row) => count(row.count), true],
  ["actions", (row) => html`${look && html`<button type="button" onClick=${() => look(row)}>Show</button>`}
    <${Actions} list=${actionsOf(row)} rights=${rights} state="" onDone=${onDone} />`],
];
const ROWS = [
  ["at", (row) => html`<${Time} us=${row.at_us} />`],
  ["table", (row) => row.table],
  ["place", (row) => row.pair.join("/")],
  ["reason", (row) => row.reason],
  ["row", (row) => html`<code>${row.row}</code>`],
];

function Rows({ pipeline, output, version }) {
  const [found, error] = useAnswer("/letters/rows", { pipeline, output }, 0, version);
  return html`<${Trouble} text=${error} />
    <${Table} label="Rows that ${pipeline} / ${output} refuses" columns=${ROWS} rows=${found ? found.letters : []} empty=${found ? "None." : "Asking…"} />`;
}

export function Letters({ rights, onDone }) {
  const [found, error] = useAnswer("/letters", {}, EVERY_MS);
  const [shown, show] = useState(null);
  const reasons = rights.includes("rows") ? show : null;
  return html`<h1>Dead letters</h1>
    <p>Rows that a target refuses.</p>
    <${Trouble} text=${error} /><${Unanswered} found=${found && found.unanswered} />
    <${Table} label="By output and table" columns=${COUNTS(reasons, rights, onDone)} rows=${found ? found.counts : []} id=${(row) => [row.pipeline, row.output, row.table].join(" ")} empty=${found ? "No target refuses a row." : "Asking…"} />
    ${shown && html`<${Rows} key=${`${shown.pipeline}/${shown.output}`} pipeline=${shown.pipeline} output=${shown.output} version=${JSON.stringify(found && found.counts)} />`}`;
}
