// Lays out a graph, away from the page: dense graphs take a while. No numbers come here, so it happens when the graph changes.
importScripts("/vendor/dagre.js");

onmessage = ({ data: { number, nodes, edges, direction } }) => {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: direction, nodesep: 18, ranksep: direction === "LR" ? 90 : 50, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const each of nodes) graph.setNode(each.id, { width: each.width, height: each.height });
  for (const each of edges) graph.setEdge(each.from, each.to);
  dagre.layout(graph);
  const { width, height } = graph.graph();
  postMessage({
    number,
    width: width || 0,
    height: height || 0,
    nodes: nodes.map(({ id }) => ({ id, x: graph.node(id).x, y: graph.node(id).y })),
    edges: edges.map(({ from, to }) => ({ from, to, points: graph.edge(from, to).points })),
  });
};
