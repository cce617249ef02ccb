// A pipeline's file as it is in force, and what can be done to the pipeline itself.

import { html } from "/vendor/htm-preact.js";
import { pathOf } from "/api.js";
import { Actions } from "/actions.js";
import { State, Table, Trouble, Unseen, useAnswer } from "/parts.js";

const written = (value) => (value === null || value === undefined ? "–" : html`<code>${JSON.stringify(value)}</code>`);
const CHANGES = [
  ["what", (row) => html`<code>${row.where}</code>`],
  ["runs as", (row) => written(row.before)],
  ["stands in the file", (row) => written(row.after)],
];

function verbOf(name) {
  return (verb, title, says, more) => ({ verb, title, says, name, path: `/pipelines${pathOf(name)}/${verb}`, ...more });
}

// What was seen of the file is what is taken.
const reload = (name, hash) => [verbOf(name)("reload", "Reload", "It takes its file as it is shown here. A file with a mistake changes nothing.", { also: { if_file: hash } })];

function actionsOf(name) {
  const verb = verbOf(name);
  return [
    verb("drain", "Drain", "It writes what its relay has now, and ends then."),
    verb("stop", "Stop", "It ends in order.", { confirm: name, right: "admin" }),
  ];
}

function File({ name, state, rights, onDone }) {
  const [found, error] = useAnswer("/config", { pipeline: name }, 5_000);
  return html`<${Trouble} text=${error} />${found && html`<h2>What a reload would change</h2>
    <${Actions} list=${reload(name, found.hash)} rights=${rights} state=${state} onDone=${onDone} />
    <${Trouble} text=${found.problem && `The file cannot be taken as it is: ${found.problem}`} />
    <${Table} label="Changes of the file" columns=${CHANGES} rows=${found.changes} empty="Nothing: the file is as it was taken." />
    <h2>As it runs</h2><p>${found.file}</p><pre tabindex="0">${JSON.stringify(found.config, null, 2)}</pre>`}`;
}

export function Config({ status, names: [chosen], rights, onDone }) {
  const pipelines = status.parts.filter((each) => each.kind === "pipeline");
  const part = chosen ? pipelines.find((each) => each.name === chosen) : pipelines[0];
  if (!part) return html`<h1>Configuration</h1><p class="wait">${chosen ? `There is no pipeline ${chosen} among what you see.` : "No pipelines."}</p>`;
  return html`<h1>Configuration</h1>
    <nav aria-label="Pipelines" class="tabs">${pipelines.map((each) => html`<a key=${each.name} href="#/config/${encodeURIComponent(each.name)}" aria-current=${each === part ? "true" : "false"}>${each.name}</a>`)}</nav>
    <${Unseen} parts=${[part]} />
    <p><${State} state=${part.state} /> ${part.failure && html`<span class="why">${part.failure}</span>`}</p>
    ${part.reload && part.reload.problem && html`<p class="trouble">The file is not what runs; a reload was refused: ${part.reload.problem}</p>`}
    <${Actions} list=${actionsOf(part.name)} rights=${rights} state=${part.state} onDone=${onDone} />
    ${rights.includes("control") ? html`<${File} key=${part.name} name=${part.name} state=${part.state} rights=${rights} onDone=${onDone} />` : html`<p>The file is shown to those who have the right <code>control</code>.</p>`}`;
}
