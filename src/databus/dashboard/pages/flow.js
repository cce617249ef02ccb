// The graph of everything, and the same as tables.

import { html, useEffect, useMemo, useRef, useState } from "/vendor/htm-preact.js";
import { Lineage } from "/lineage.js";
import { State, Table, Unseen, useAnswer } from "/parts.js";
import { bytes, count, least, lookOf, rate, seconds } from "/words.js";

const WIDTH = 168;
const HEIGHT = 58;
const NODES_MAX = 150;
const CHARS_MAX = 20;
const NARROW_PX = 700;

// Above so many nodes, outputs that share a lane, or come from the same node, are one; then filters that do.
function folded(graph) {
  let { nodes, edges } = graph;
  for (const kind of ["output", "filter"]) {
    if (nodes.length <= NODES_MAX) break;
    const from = {};
    for (const each of edges) (from[each.to] ||= []).push(each.from);
    const groups = {};
    for (const each of nodes) {
      if (each.kind !== kind) continue;
      const key = JSON.stringify([each.part, each.lane || (from[each.id] || []).sort()]);
      (groups[key] ||= []).push(each);
    }
    const into = {};
    for (const group of Object.values(groups)) {
      if (group.length < 2) continue;
      const id = `${group[0].id} …`;
      for (const each of group) into[each.id] = { id, part: group[0].part, kind: "group", name: `${group.length} ${kind}s`, type: group[0].lane ? `lane ${group[0].lane}` : cut(group.map((one) => one.name).join(", ")), of: group.map((one) => one.id) };
    }
    const kept = nodes.filter((each) => !into[each.id]);
    nodes = [...kept, ...new Map(Object.values(into).map((each) => [each.id, each])).values()];
    const moved = edges.map((each) => ({ ...each, from: into[each.from]?.id || each.from, to: into[each.to]?.id || each.to }));
    edges = [...new Map(moved.map((each) => [`${each.from} ${each.to}`, each])).values()];
  }
  return { nodes, edges };
}

// What is shown of several nodes as one: the worst state, all rows, the largest lag; of those that are known.
export function together(node, numbers) {
  const known = (node.of || []).map((id) => numbers[id]).filter(Boolean);
  if (known.length === 0) return numbers[node.id];
  const order = ["failed", "hanging", "retrying", "paused", "stopped", "starting", "running"];
  const state = order.find((each) => known.some((one) => one.state === each)) || known[0].state;
  const those = (name) => known.map((one) => one[name]).filter((each) => each !== null && each !== undefined);
  const [rows, lags] = [those("rows_s"), those("lag_s")];
  return {
    state,
    rows_s: rows.length ? rows.reduce((sum, each) => sum + each, 0) : null,
    lag_s: lags.length ? Math.max(...lags) : null,
    lag_is_least: lags.length < known.length || known.some((one) => one.lag_is_least),
  };
}

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
    if (graph === null || graph.nodes.length > NODES_MAX) return; // even when they are folded
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
  const told = isKnown && !(numbers.dropped_s !== undefined) ? `${sign} ${word}` : node.type;
  const dropped = isKnown && numbers.dropped_s !== undefined;
  const below = dropped ? `drops ${rate(numbers.dropped_s)}` : isKnown ? `${rate(numbers.rows_s)} rows, lag ${least(seconds(lag), numbers.lag_is_least)}` : node.kind;
  const link = linkOf(node);
  const label = `${node.kind} ${node.name}, ${isKnown ? `${dropped ? node.type : word}, ${below}` : node.type}`;
  const body = html`<rect class="node ${isKnown && !dropped ? look : "plain"}" width=${WIDTH} height=${HEIGHT} rx=${node.kind === "filter" ? 2 : 10} />
    <text x="10" y="18" class="name">${cut(node.name)}</text>
    <text x="10" y="34">${cut(told)}</text>
    <text x="10" y="49" class="small">${below}</text><title>${label}</title>`;
  const place = `translate(${at.x - WIDTH / 2} ${at.y - HEIGHT / 2})`;
  return link
    ? html`<a href=${link} transform=${place}>${body}</a>`
    : html`<g transform=${place} role="img" aria-label=${label}>${body}</g>`;
}

function Edge({ points, text, title }) {
  const way = points.map(({ x, y }, at) => `${at ? "L" : "M"}${x} ${y}`).join("");
  const middle = points[Math.floor(points.length / 2)];
  return html`<g class="edge"><path d=${way} marker-end="url(#arrow)" />
    ${text && html`<text x=${middle.x} y=${middle.y - 5} text-anchor="middle">${text}${title && html`<title>${title}</title>`}</text>`}</g>`;
}

function Drawing({ graph, layout, numbers, edges }) {
  const places = useMemo(() => Object.fromEntries(layout.nodes.map((each) => [each.id, each])), [layout]);
  const there = graph.nodes.filter((each) => places[each.id]);
  // Outputs count what goes over edges; what a relay captures its node says: an input may read less of it.
  const over = ({ from, to }) => edges[`${from} ${to}`] || {};
  const title = (known) => `rows: ${rate(known.rows_s)}, ${rate(known.rows_s_5m)} over 5 min; bytes: ${bytes(known.bytes_s)}/s, ${bytes(known.bytes_s_5m)}/s over 5 min`;
  return html`<div class="drawing" tabindex="0" role="region" aria-label="Graph">
    <svg width=${layout.width} height=${layout.height} viewBox="0 0 ${layout.width} ${layout.height}" role="group" aria-label="What flows where">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
      ${layout.edges.map((each) => html`<${Edge} key=${`${each.from} ${each.to}`} points=${each.points} text=${over(each).rows_s ? rate(over(each).rows_s) : ""} title=${title(over(each))} />`)}
      ${there.map((each) => html`<${Node} key=${each.id} node=${each} at=${places[each.id]} numbers=${together(each, numbers)} />`)}
    </svg>
  </div>`;
}

const OUTPUTS = [
  ["output", (row) => html`<a href="#/output/${encodeURIComponent(row.pipeline)}/${encodeURIComponent(row.output)}">${row.pipeline} / ${row.output}</a>`],
  ["state", (row) => html`<${State} state=${row.state} />`],
  ["rows/s", (row) => rate(row.rows_s), true],
  ["5 min", (row) => rate(row.rows_s_5m), true],
  ["lag", (row) => least(seconds(row.lag_s), row.lag_is_least), true],
  ["rows left", (row) => least(count(row.lag_rows), row.lag_rows_is_least), true],
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

const EDGES = [
  ["from", (row) => row.from],
  ["to", (row) => row.to],
  ["rows/s", (row) => rate(row.rows_s), true],
  ["5 min", (row) => rate(row.rows_s_5m), true],
  ["bytes/s", (row) => bytes(row.bytes_s), true],
  ["5 min", (row) => bytes(row.bytes_s_5m), true],
];

export function Flow({ status }) {
  const [whole, error] = useAnswer("/graph", {}, 0, status.graph);
  const graph = useMemo(() => whole && folded(whole), [whole]);
  const [isNarrow, narrow] = useState(innerWidth < NARROW_PX);
  useEffect(() => {
    const look = () => narrow(innerWidth < NARROW_PX);
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  const layout = useLayout(graph, isNarrow ? "TB" : "LR");
  const numbers = Object.fromEntries([...status.outputs, ...status.sources, ...status.filters].map((each) => [each.node, each]));
  const edges = Object.fromEntries(status.edges.map((each) => [`${each.from} ${each.to}`, each]));
  const pipelines = status.parts.filter((each) => each.kind === "pipeline");
  return html`<h1>Flow</h1>
    <${Unseen} parts=${status.parts} />
    ${error && html`<p class="trouble">${error}</p>`}
    ${graph && graph.nodes.length > NODES_MAX && html`<p>${graph.nodes.length} nodes are too many for a drawing; the tables have all.</p>`}
    ${graph && layout && graph.nodes.length <= NODES_MAX && html`<${Drawing} graph=${graph} layout=${layout} numbers=${numbers} edges=${edges} />`}
    <${Table} label="Outputs" columns=${OUTPUTS} rows=${status.outputs} empty="No outputs yet." />
    <${Table} label="Sources" columns=${SOURCES} rows=${status.sources} empty="No sources yet." />
    <${Table} label="Pipelines" columns=${PIPELINES} rows=${pipelines} empty="No pipelines." />
    <${Table} label="Edges, as outputs count them" columns=${EDGES} rows=${status.edges} empty="Nothing has been counted yet." />
    <${Lineage} />`;
}
