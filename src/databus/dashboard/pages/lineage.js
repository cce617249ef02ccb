// Which tables come to which output, and of which columns each column there is made; asked for when somebody wants it.

import { html, useState } from "/vendor/htm-preact.js";
import { Table, Trouble, Unanswered, useAnswer } from "/parts.js";

const made = ({ name, from }) => {
  if (from === "unknown") return `${name} of what nobody can tell`;
  return from.length === 1 && from[0] === name ? name : `${name} of ${from.join(", ") || "nothing"}`;
};

const LINEAGE = [
  ["table", (row) => row.table],
  ["output", (row) => `${row.pipeline} / ${row.output}`],
  ["filters", (row) => row.filters.join(", ")],
  ["columns", (row) => (row.columns === "unknown" ? "unknown" : row.columns.map(made).join("; "))],
  ["there", (row) => `${row.target.namespace} ${row.target.name}`],
];

function Tables({ source }) {
  const [found, error] = useAnswer("/lineage", {});
  const rows = found ? found.tables.filter((row) => !source || row.table.startsWith(`${source}/`)) : [];
  return html`<${Trouble} text=${error} /><${Unanswered} found=${found && found.unanswered} />
    <${Table} label="Lineage" columns=${LINEAGE} rows=${rows} empty=${found ? "No table comes to an output." : "Asking…"} />`;
}

export function Lineage({ source }) {
  const [isOpen, open] = useState(false);
  return html`<h2>Lineage</h2>
    <button type="button" aria-expanded=${String(isOpen)} onClick=${() => open(!isOpen)}>${isOpen ? "Hide" : "Show"} tables and columns</button>
    ${isOpen && html`<${Tables} source=${source} />`}`;
}
