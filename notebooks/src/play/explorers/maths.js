// What the explorers compute. Nothing here draws. tests/test_play.py holds each function
// against the package, SciPy or scikit-learn.

/**
 * Make a symmetric matrix from what is above its diagonal, row by row.
 * @param {number[]} above whole numbers
 * @param {number} m the number of rows
 * @param {number} unit what 1 stands for
 * @returns {number[][]}
 */
export function square(above, m, unit) {
  const matrix = Array.from({ length: m }, () => new Array(m).fill(0));
  let k = 0;
  for (let i = 0; i < m; i++) for (let j = i + 1; j < m; j++) matrix[i][j] = matrix[j][i] = above[k++] * unit;
  return matrix;
}

/**
 * Join the two nearest clusters until one is left; the distance of two clusters is the mean over
 * their pairs of clients (average linkage).
 * @param {number[][]} distance [m, m]
 * @returns {{parts: number[], height: number}[]} the joins, in ascending order; clients are
 *   0 to m − 1, and join k makes cluster m + k
 */
export function linkage(distance) {
  const m = distance.length;
  let alive = distance.map((row, i) => ({ name: i, members: [i] }));
  const between = (a, b) => {
    let sum = 0;
    for (const i of a.members) for (const j of b.members) sum += distance[i][j];
    return sum / (a.members.length * b.members.length);
  };
  const joins = [];
  while (alive.length > 1) {
    let [best, height] = [[alive[0], alive[1]], Infinity];
    for (const a of alive)
      for (const b of alive)
        if (a.name < b.name && between(a, b) < height) [best, height] = [[a, b], between(a, b)];
    const [a, b] = best;
    joins.push({ parts: [a.name, b.name], height });
    alive = alive.filter((one) => one !== a && one !== b);
    alive.push({ name: m + joins.length - 1, members: [...a.members, ...b.members] });
  }
  return joins;
}

/** The clients below a cluster of a tree, from left to right. */
export function leaves(joins, cluster = 2 * joins.length) {
  const m = joins.length + 1;
  return cluster < m ? [cluster] : joins[cluster - m].parts.flatMap((part) => leaves(joins, part));
}

/** Labels [m] of the connected parts of a graph, numbered in order of first appearance. */
export function components(m, edges) {
  const root = Array.from({ length: m }, (_, i) => i);
  const find = (i) => (root[i] === i ? i : (root[i] = find(root[i])));
  for (const [i, j] of edges) root[find(i)] = find(j);
  return numbered(root.map((_, i) => find(i)));
}

/** Number labels of any kind from 0, in order of first appearance. */
export function numbered(labels) {
  const seen = [...new Set(labels)];
  return labels.map((label) => seen.indexOf(label));
}

/** Labels [m] after all joins below a height. */
export function cutAt(joins, height) {
  const m = joins.length + 1;
  const edges = joins.filter((join) => join.height < height)
    .map((join) => join.parts.map((part) => leaves(joins, part)[0]));
  return components(m, edges);
}

/** The adjusted Rand index of two groupings: 1 if they are the same, about 0 if by chance. */
export function ari(truth, found) {
  const pairs = (labels) => {
    const sizes = {};
    for (const label of labels) sizes[label] = (sizes[label] ?? 0) + 1;
    return Object.values(sizes).reduce((sum, n) => sum + (n * (n - 1)) / 2, 0);
  };
  const [a, b] = [pairs(truth), pairs(found)];
  const both = pairs(truth.map((t, i) => `${t} ${found[i]}`));
  const chance = (a * b) / ((truth.length * (truth.length - 1)) / 2);
  const most = (a + b) / 2;
  return most === chance ? 1 : (both - chance) / (most - chance);
}

/** For each client its group if its cluster is exactly this group, and −1 otherwise. */
export function exact(truth, found) {
  return truth.map((group, i) =>
    truth.every((other, j) => (other === group) === (found[j] === found[i])) ? group : -1);
}

/** Say what is wrong with clusters: whether some hold clients of two groups, and some not all of one. */
export function faults(truth, found) {
  const some = (wrong) => truth.some((_, i) => truth.some((__, j) => wrong(truth[i] === truth[j], found[i] === found[j])));
  return { merged: some((group, cluster) => cluster && !group), splintered: some((group, cluster) => group && !cluster) };
}

/** The heights between which a cut finds exactly the groups, or null if no cut does. */
export function rightHeights(joins, truth) {
  const heights = joins.map((join) => join.height);
  const groups = new Set(truth).size;
  const [low, high] = [heights[heights.length - groups], heights[heights.length - groups + 1]];
  return ari(truth, cutAt(joins, (low + high) / 2)) === 1 ? [low, high] : null;
}

/** Sattler's two conditions: the place of the first round that meets both, or −1. */
export function firstSplit(norms, eps1, eps2) {
  return norms.findIndex(([mean, longest]) => mean < eps1 && longest > eps2);
}

/** Of each pair the larger score: both must be below ε. */
export function larger(scores) {
  return scores.map((row, i) => row.map((score, j) => Math.max(score, scores[j][i])));
}

/** EMD-CFL's clusters [m]: clients that agree with exactly the same clients. */
export function neighbourhoods(pair, epsilon) {
  return numbered(pair.map((row, i) => {
    const near = row.map((score) => score < epsilon);
    if (!near.includes(true)) near[i] = true;
    return near.join();
  }));
}

/** The largest score within a group and the smallest between two: each ε in between is right. */
export function workingRange(pair, truth) {
  const of = (same) => pair.flatMap((row, i) => row.filter((_, j) => (truth[i] === truth[j]) === same));
  return [Math.max(...of(true)), Math.min(...of(false))];
}

/** FedCRef's associations: pairs of local clusters of different clients that are alike enough. */
export function associated(far, owner, theta) {
  const edges = [];
  far.forEach((row, i) => row.forEach((value, j) => {
    if (i < j && owner[i] !== owner[j] && value <= theta) edges.push([i, j]);
  }));
  return edges;
}

/** Communities of two or more, local clusters without a line, and the number of wrong lines. */
export function counted(classes, edges) {
  const label = components(classes.length, edges);
  const size = (i) => label.filter((other) => other === label[i]).length;
  const isolated = label.filter((_, i) => size(i) === 1).length;
  return {
    communities: new Set(label).size - isolated,
    isolated,
    wrong: edges.filter(([i, j]) => classes[i] !== classes[j]).length,
  };
}

/** The mean weight that clients get from other groups, of a mixing matrix [m, m]. */
export function foreign(matrix, truth) {
  const shares = matrix.map((row, i) => row.reduce((sum, w, j) => sum + (truth[i] === truth[j] ? 0 : w), 0));
  return shares.reduce((sum, share) => sum + share, 0) / shares.length;
}

/** The area under the first points of a curve, as a share of the whole width (trapezoids). */
export function area(curve, points = curve.length) {
  let sum = 0;
  for (let i = 1; i < points; i++) sum += (curve[i] + curve[i - 1]) / 2;
  return sum / (curve.length - 1);
}

/**
 * A mixing matrix [m, m] from its different rows, two hexadecimal digits a weight, and a letter for
 * each client that says which row is its own. Rows sum to 1.
 * @param {[string, string]} folded
 * @returns {number[][]}
 */
export function unfold([rows, of]) {
  const m = of.length;
  return Array.from(of, (letter) => {
    const first = m * (letter.charCodeAt(0) - 97);
    const row = Array.from({ length: m }, (_, j) => parseInt(rows.slice(2 * (first + j), 2 * (first + j + 1)), 16));
    const sum = row.reduce((total, weight) => total + weight, 0);
    return row.map((weight) => weight / sum);
  });
}
