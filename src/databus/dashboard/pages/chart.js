// Charts of a node's history. Colours come from the style sheet, so they follow light and dark.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact.js";
import { useAnswer } from "/parts.js";
import { bytes, count, seconds } from "/words.js";

const EVERY_MS = 10_000;
const HEIGHT_PX = 140;
const SPANS = [["1 h", 1], ["6 h", 6], ["24 h", 24], ["7 days", 168], ["30 days", 720]];
const MEASURES = [
  ["rows_s", "rows/s", count],
  ["bytes_s", "bytes/s", bytes],
  ["lag_s", "lag", seconds],
  ["lag_rows", "rows left", count],
];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function Chart({ title, show, at_us: at, values }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const options = {
      width: Math.max(box.current.clientWidth, 200),
      height: HEIGHT_PX,
      legend: { show: false },
      series: [{}, { stroke: colour("--busy"), width: 1.5, spanGaps: false }],
      axes: [axis, { ...axis, size: 70, values: (_, ticks) => ticks.map(show) }],
    };
    plot.current = new uPlot(options, [[], []], box.current);
    const resize = () => plot.current.setSize({ width: Math.max(box.current.clientWidth, 200), height: HEIGHT_PX });
    addEventListener("resize", resize);
    return () => {
      removeEventListener("resize", resize);
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData([at.map((us) => us / 1e6), values]), [at, values]);
  const known = values.filter((each) => each !== null);
  const last = known.length ? show(known[known.length - 1]) : "unknown";
  return html`<figure><figcaption>${title}: ${last} now</figcaption>
    <div ref=${box} class="chart" role="img" aria-label="${title} over time, ${last} now"></div></figure>`;
}

export function Charts({ node }) {
  const [hours, choose] = useState(6);
  const [begun] = useState(Date.now());
  const [found] = useAnswer("/metrics", { node, since_us: (begun - hours * 3_600_000) * 1000 }, EVERY_MS);
  const columns = found && found[node];
  const spans = html`<p class="actions" role="group" aria-label="How far back">${SPANS.map(([title, each]) =>
    html`<button type="button" key=${title} aria-pressed=${each === hours ? "true" : "false"} onClick=${() => choose(each)}>${title}</button>`)}</p>`;
  if (!columns || columns.at_us.length < 2) return html`${spans}<p class="wait">Nothing has been noted in this time; a point comes each ten seconds.</p>`;
  return html`${spans}${plots(columns)}`;
}

function plots(columns) {
  return MEASURES.filter(([name]) => columns[name]).map(([name, title, show]) =>
    html`<${Chart} key=${name} title=${title} show=${show} at_us=${columns.at_us} values=${columns[name]} />`);
}
