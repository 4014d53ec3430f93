import { associated, counted, square } from "./maths.js";
import { draggable, drawn, explorer, line, path, slider, svg, tag, words } from "./draw.js";

const [LOW, HIGH, STEP] = [0.15, 0.75, 0.005];

/** FedCRef: local clusters of all clients, joined under a threshold. */
export function mount(element, data) {
  const { threshold, owner, classes, far } = data.fedcref;
  const apart = square(far, classes.length, data.unit);
  const thetas = Array.from({ length: Math.round((HIGH - LOW) / STEP) + 1 }, (_, k) => LOW + k * STEP);
  const curves = thetas.map((theta) => {
    const edges = associated(apart, owner, theta);
    return { lines: edges.length, ...counted(classes, edges) };
  });
  const digits = [...new Set(classes)].sort((a, b) => a - b);
  const { controls, picture, say } = explorer(element, {
    question: "Which piles of images show the same digit?",
    answer: `Twelve clients have sorted their images into piles, without labels. Each pile has trained a small network that redraws its
      images. Two piles are joined if their networks make nearly the same errors. Too strict, and piles stay alone; too loose,
      and digits flow together.`,
    key: `Each dot is a pile of one client, and each ring a digit, which the method does not know. A hollow dot has no line. Thin lines
      join piles of one digit; thick lines are wrong.`,
    lesson: "06_fedcref",
    link: "Lesson 06: how errors are compared.",
  });
  const redraw = () => again();
  const theta = slider(controls, { label: "Threshold ϑ: how different errors may be", min: LOW, max: HIGH, step: STEP, value: threshold, show: (v) => v.toFixed(3) }, redraw);
  let scale = { left: 0, span: 1 };
  draggable(picture, (_, x) => {
    theta.value = Math.min(HIGH, Math.max(LOW, LOW + ((x - scale.left) / scale.span) * (HIGH - LOW)));
  });
  const again = drawn(picture, (width) => {
    const edges = associated(apart, owner, theta.value);
    const { communities, isolated, wrong } = counted(classes, edges);
    const verdict = wrong > 0.02 * edges.length ? "Too loose: digits flow together."
      : isolated > classes.length / 5 ? "Too strict: many piles stay alone." : `About right: there are ${digits.length} digits.`;
    say(`ϑ = ${theta.value.toFixed(3)}: <b>${communities} communit${communities === 1 ? "y" : "ies"}</b> of joined piles, ${isolated} piles alone,
      ${wrong} of ${edges.length} lines wrong. ${verdict}`);
    const wide = width >= 640;
    const size = Math.min(wide ? width * 0.52 : width, 400);
    const [x0, top] = wide ? [size + 36, 30] : [0, size + 30];
    return svg(width, wide ? size : size + 260, `43 piles of images in ${communities} communities.`,
      ring(edges, wide ? size / 2 : width / 2, size / 2, size / 2 - 28) + chart(x0, top, width - x0, wide ? size - 90 : 190));
  });

  function ring(edges, cx, cy, radius) {
    const at = [];
    const circles = digits.map((digit, k) => {
      const angle = (2 * Math.PI * k) / digits.length - Math.PI / 2;
      const [x, y] = [cx + radius * 0.8 * Math.cos(angle), cy + radius * 0.8 * Math.sin(angle)];
      const piles = classes.flatMap((other, i) => (other === digit ? [i] : []));
      piles.forEach((pile, n) => {
        const turn = (2 * Math.PI * n) / piles.length + angle;
        at[pile] = [x + radius * 0.15 * Math.cos(turn), y + radius * 0.15 * Math.sin(turn)];
      });
      return tag("circle", { cx: x, cy: y, r: radius * 0.225, class: "place" }) +
        words(cx + (radius + 14) * Math.cos(angle) * 1.03, cy + (radius + 14) * Math.sin(angle) * 1.03 + 5, digit, "middle strong");
    });
    const joined = new Set(edges.flat());
    const drawnLines = [...edges].sort((a, b) => wrongness(a) - wrongness(b))
      .map((edge) => line(...at[edge[0]], ...at[edge[1]], wrongness(edge) ? "wrong" : "faint"));
    const dots = at.map(([x, y], i) => tag("circle", { cx: x, cy: y, r: joined.has(i) ? 5 : 4, class: joined.has(i) ? "pile joined" : "pile" }));
    return circles.join("") + drawnLines.join("") + dots.join("");
  }
  function wrongness([i, j]) {
    return Number(classes[i] !== classes[j]);
  }
  function chart(x0, top, width, height) {
    const [left, right, most] = [x0 + 30, x0 + width - 12, classes.length + 2];
    scale = { left, span: right - left };
    const x = (value) => left + ((value - LOW) / (HIGH - LOW)) * (right - left);
    const y = (count) => top + height * (1 - count / most);
    const curve = (name, looks) => path(thetas.map((value, k) => [x(value), y(curves[k][name])]), `curve ${looks}`);
    const here = curves[Math.round((theta.value - LOW) / STEP)];
    const dot = (count, looks) => tag("circle", { cx: x(theta.value), cy: y(count), r: 5, class: `dot ${looks}` });
    const knife = x(theta.value);
    return [0, 10, 20, 30, 40].map((at) => words(left - 8, y(at) + 4, at, "end muted") + line(left, y(at), right, y(at), "axis")).join("") +
      [0.2, 0.3, 0.4, 0.5, 0.6, 0.7].map((at) => words(x(at), y(0) + 18, at, "middle muted")).join("") +
      line(left, y(digits.length), right, y(digits.length), "truth") + words(right, y(digits.length) - 6, `${digits.length} digits`, "end muted halo") +
      curve("isolated", "long") + curve("communities", "short") +
      words(x(0.3), y(24), "piles alone", "start muted") + words(x(0.61), y(6), "communities") +
      line(knife, top, knife, y(0), "knife") + dot(here.isolated, "long") + dot(here.communities, "short") +
      tag("circle", { cx: knife, cy: y(0), r: 7, class: "grip" }) + words(knife, top - 8, `ϑ ${theta.value.toFixed(2)}`, "middle accent strong") +
      tag("rect", { x: knife - 18, y: top, width: 36, height: height + 12, class: "handle sideways", "data-handle": "theta" });
  }
}
