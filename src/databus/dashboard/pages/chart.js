// Charts of a node's history. Colours come from the style sheet, so they follow light and dark.

import { html, useEffect, useMemo, useRef, useState } from "/vendor/htm-preact.js";
import { Trouble, useAnswer } from "/parts.js";
import { bytes, count, seconds, time } from "/words.js";

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

const GAP_POINTS = 5; // a look may be late, and this page too

// The seconds of points; after which of them there is a gap, since nothing was noted: no line goes over it; and up to
// when the last of them is of now.
export function spaced(at_us) {
  const at = at_us.map((us) => us / 1e6);
  const steps = at.slice(1).map((each, before) => each - at[before]);
  const most = GAP_POINTS * Math.min(...steps);
  const gaps = new Set([...at.keys()].filter((before) => steps[before] > most));
  return { at, gaps, until: at[at.length - 1] + most };
}

const parted = (column, gaps, fill) => column.flatMap((each, at) => (gaps.has(at) ? [each, fill(at)] : [each]));

// now_us: as the dashboard's clock says, since the reader's may be another.
function Chart({ title, show, spacing, values, hours, now_us }) {
  const box = useRef(null);
  const plot = useRef(null);
  const range = useRef(null);
  range.current = [now_us / 1e6 - hours * 3_600, now_us / 1e6];
  useEffect(() => {
    const axis = { stroke: colour("--ink"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    const options = {
      width: Math.max(box.current.clientWidth, 200),
      height: HEIGHT_PX,
      legend: { show: false },
      scales: { x: { range: () => range.current } },
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
  const { at, gaps, until } = spacing;
  useEffect(() => plot.current.setData([parted(at, gaps, (before) => at[before] + 1), parted(values, gaps, () => null)]), [at, values, hours]);
  const known = values.findLastIndex((each) => each !== null);
  const isNow = known === values.length - 1 && now_us / 1e6 < until;
  const last = known < 0 ? "unknown" : `${show(values[known])} ${isNow ? "now" : `at ${time(at[known] * 1e6).text}, unknown since`}`;
  return html`<figure><figcaption>${title}: ${last}</figcaption>
    <div ref=${box} class="chart" role="img" aria-label="${title} over time, ${last}"></div></figure>`;
}

export function Charts({ node, now_us }) {
  const [hours, choose] = useState(6);
  const now = useRef(now_us);
  now.current = now_us;
  const [found, error] = useAnswer("/metrics", { node, since_us: () => now.current - hours * 3_600_000_000 }, EVERY_MS, hours);
  const columns = found && found[node];
  const spacing = useMemo(() => columns && spaced(columns.at_us), [columns]);
  const spans = html`<p class="actions" role="group" aria-label="How far back">${SPANS.map(([title, each]) =>
    html`<button type="button" key=${title} aria-pressed=${each === hours ? "true" : "false"} onClick=${() => choose(each)}>${title}</button>`)}</p>`;
  if (!columns || columns.at_us.length < 2) return html`${spans}<${Trouble} text=${error} /><p class="wait">Nothing has been noted in this time; a point comes each ten seconds.</p>`;
  return html`${spans}<${Trouble} text=${error} />${MEASURES.filter(([name]) => columns[name]).map(([name, title, show]) =>
    html`<${Chart} key=${name} title=${title} show=${show} spacing=${spacing} values=${columns[name]} hours=${hours} now_us=${now_us} />`)}`;
}
