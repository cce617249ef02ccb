// What fires, what is about to, what is over, and by which rules.

import { html } from "/vendor/htm-preact.js";
import { Actions } from "/actions.js";
import { Table, Time, Trouble, useAnswer } from "/parts.js";
import { seconds } from "/words.js";

const EVERY_MS = 2_000;
const MINUTES = [{ name: "minutes", label: "For how many minutes", type: "number", min: 1, max: 43200, value: 60 }];
const LOOKS = { firing: "bad", pending: "busy", resolved: "good" };

const of = (alert) => Object.entries(alert.labels).map(([name, value]) => `${name}=${value}`).join(", ");

function actionsOf(alert) {
  const name = `${alert.rule} (${of(alert)})`;
  return [
    { verb: "ack", title: "Acknowledge", name, says: "Somebody sees to it: it is not told again while it fires.", path: `/alerts/${alert.id}/ack` },
    { verb: "silence", title: "Silence", name, says: "It is told to nobody for a while.", path: `/alerts/${alert.id}/silence`, fields: MINUTES },
  ];
}

const OPEN = (rights, onDone) => [
  ["alert", (row) => html`<b class=${LOOKS[row.state]}>${row.rule}</b>`],
  ["state", (row) => `${row.state}, ${row.severity}`],
  ["of", of],
  ["since", (row) => html`<${Time} us=${row.since_us} />`],
  ["what to do", (row) => row.says],
  ["seen to by", (row) => row.acked_by || ""],
  ["silenced until", (row) => row.silenced_until_us && html`<${Time} us=${row.silenced_until_us} />`],
  ["actions", (row) => html`<${Actions} list=${actionsOf(row)} rights=${rights} state="" onDone=${onDone} />`],
];
const OVER = [
  ["alert", (row) => row.rule],
  ["of", of],
  ["fired", (row) => html`<${Time} us=${row.fired_us} />`],
  ["was over", (row) => html`<${Time} us=${row.resolved_us} />`],
];
const RULES = [
  ["rule", (row) => row.name],
  ["fires when", (row) => html`<code>${row.when}</code>`],
  ["for", (row) => (row.for_s ? seconds(row.for_s) : "at once"), true],
  ["severity", (row) => row.severity],
];

export function Alerts({ rights, onDone }) {
  const [found, error] = useAnswer("/alerts", {}, EVERY_MS);
  if (!found) return html`<h1>Alerts</h1><${Trouble} text=${error} /><p class="wait">Asking…</p>`;
  return html`<h1>Alerts</h1><${Trouble} text=${error} />
    <${Trouble} text=${found.troubles.join("\n")} />
    <${Table} label="Now" columns=${OPEN(rights, onDone)} rows=${found.open} id=${(row) => row.id} empty="Nothing fires." />
    <${Table} label="Over, the newest first" columns=${OVER} rows=${found.over} empty="Nothing has fired since the dashboard was started." />
    <${Table} label="Rules" columns=${RULES} rows=${found.rules} empty="No rules." />`;
}
