// The graph of everything, and the same as tables.

import { html, useEffect, useMemo, useRef, useState } from "/vendor/htm-preact.js";
import { State, Table, Unseen, useAnswer } from "/parts.js";
import { count, lookOf, rate, seconds } from "/words.js";

const WIDTH = 168;
const HEIGHT = 58;
const NODES_MAX = 150;
const CHARS_MAX = 20;
const NARROW_PX = 700;

const cut = (text) => (text.length > CHARS_MAX ? `${text.slice(0, CHARS_MAX - 1)}…` : text);

export const linkOf = (node) => {
  const kinds = { output: "output", source: "source" };
  const kind = kinds[node.kind];
  return kind ? `#/${kind}/${encodeURIComponent(node.part)}/${encodeURIComponent(node.name)}` : "";
};

// Where the nodes are: asked of a worker, again when the graph or the direction is another.
function useLayout(graph, direction) {
  const [layout, put] = useState(null);
  const worker = useRef(null);
  const number = useRef(0);
  useEffect(() => {
    worker.current = new Worker("/layout.worker.js");
    worker.current.onmessage = ({ data }) => data.number === number.current && put(data);
    return () => worker.current.terminate();
  }, []);
  useEffect(() => {
    if (graph === null || graph.nodes.length > NODES_MAX) return;
    number.current += 1;
    const nodes = graph.nodes.map(({ id }) => ({ id, width: WIDTH, height: HEIGHT }));
    const edges = graph.edges.map(({ from, to }) => ({ from, to }));
    worker.current.postMessage({ number: number.current, nodes, edges, direction });
  }, [graph, direction]);
  return layout;
}

function Node({ node, at, numbers }) {
  const isKnown = numbers !== undefined;
  const { look, sign, word } = lookOf(isKnown ? numbers.state || numbers.status : "");
  const lag = isKnown ? numbers.lag_s ?? (numbers.lagMs === null || numbers.lagMs === undefined ? null : numbers.lagMs / 1e3) : null;
  const told = isKnown ? `${sign} ${word}` : node.type;
  const below = isKnown ? `${rate(numbers.rows_s)} rows, lag ${seconds(lag)}` : node.kind;
  const link = linkOf(node);
  const label = `${node.kind} ${node.name}, ${isKnown ? `${word}, ${below}` : node.type}`;
  const body = html`<rect class="node ${isKnown ? look : "plain"}" width=${WIDTH} height=${HEIGHT} rx=${node.kind === "filter" ? 2 : 10} />
    <text x="10" y="18" class="name">${cut(node.name)}</text>
    <text x="10" y="34">${cut(told)}</text>
    <text x="10" y="49" class="small">${below}</text><title>${label}</title>`;
  const place = `translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`;
  return link
    ? html`<a href=${link} transform=${place}>${body}</a>`
    : html`<g transform=${place} role="img" aria-label=${label}>${body}</g>`;
}

function Edge({ points, text }) {
  const way = points.map(({ x, y }, at) => `${at ? "L" : "M"}${x} ${y}`).join("");
  const middle = points[Math.floor(points.length / 2)];
  return html`<g class="edge"><path d=${way} marker-end="url(#arrow)" />
    ${text && html`<text x=${middle.x} y=${middle.y - 5} text-anchor="middle">${text}</text>`}</g>`;
}

function Drawing({ graph, layout, numbers }) {
  const places = useMemo(() => Object.fromEntries(layout.nodes.map((each) => [each.id, each])), [layout]);
  const there = graph.nodes.filter((each) => places[each.id]);
  // What goes over an edge is known at both ends of a pipeline: what a relay captures, and what an output writes.
  const over = ({ from, to }) => {
    const known = numbers[to] || numbers[from];
    return known && known.rows_s ? rate(known.rows_s) : "";
  };
  return html`<div class="drawing" tabindex="0" role="region" aria-label="Graph">
    <svg width=${layout.width} height=${layout.height} viewBox="0 0 ${layout.width} ${layout.height}" role="group" aria-label="What flows where">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
      ${layout.edges.map((each) => html`<${Edge} key=${`${each.from} ${each.to}`} points=${each.points} text=${over(each)} />`)}
      ${there.map((each) => html`<${Node} key=${each.id} node=${each} at=${places[each.id]} numbers=${numbers[each.id]} />`)}
    </svg>
  </div>`;
}

const OUTPUTS = [
  ["output", (row) => html`<a href="#/output/${encodeURIComponent(row.pipeline)}/${encodeURIComponent(row.output)}">${row.pipeline} / ${row.output}</a>`],
  ["state", (row) => html`<${State} state=${row.state} />`],
  ["rows/s", (row) => rate(row.rows_s), true],
  ["5 min", (row) => rate(row.rows_s_5m), true],
  ["lag", (row) => seconds(row.lag_s), true],
  ["rows left", (row) => count(row.lag_rows), true],
  ["message", (row) => row.message || ""],
];
const SOURCES = [
  ["source", (row) => html`<a href="#/source/${encodeURIComponent(row.relay)}/${encodeURIComponent(row.source)}">${row.relay} / ${row.source}</a>`],
  ["state", (row) => html`<${State} state=${row.status} />`],
  ["rows/s", (row) => rate(row.rows_s), true],
  ["5 min", (row) => rate(row.rows_s_5m), true],
  ["lag", (row) => seconds(row.lagMs === null || row.lagMs === undefined ? null : row.lagMs / 1e3), true],
  ["message", (row) => row.message || ""],
];
const PIPELINES = [
  ["pipeline", (row) => html`<a href="#/config/${encodeURIComponent(row.name)}">${row.name}</a>`],
  ["state", (row) => html`<${State} state=${row.state} />`],
  ["doing", (row) => row.doing || ""],
  ["where", (row) => row.where],
];

export function Flow({ status }) {
  const [graph, error] = useAnswer("/graph", {}, 0, status.graph);
  const [isNarrow, narrow] = useState(innerWidth < NARROW_PX);
  useEffect(() => {
    const look = () => narrow(innerWidth < NARROW_PX);
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  const layout = useLayout(graph, isNarrow ? "TB" : "LR");
  const numbers = Object.fromEntries([...status.outputs, ...status.sources].map((each) => [each.node, each]));
  const pipelines = status.parts.filter((each) => each.kind === "pipeline");
  return html`<h1>Flow</h1>
    <${Unseen} parts=${status.parts} />
    ${error && html`<p class="trouble">${error}</p>`}
    ${graph && graph.nodes.length > NODES_MAX && html`<p>${graph.nodes.length} nodes are too many for a drawing; the tables have all.</p>`}
    ${graph && layout && graph.nodes.length <= NODES_MAX && html`<${Drawing} graph=${graph} layout=${layout} numbers=${numbers} />`}
    <${Table} label="Outputs" columns=${OUTPUTS} rows=${status.outputs} empty="No outputs yet." />
    <${Table} label="Sources" columns=${SOURCES} rows=${status.sources} empty="No sources yet." />
    <${Table} label="Pipelines" columns=${PIPELINES} rows=${pipelines} empty="No pipelines." />`;
}
