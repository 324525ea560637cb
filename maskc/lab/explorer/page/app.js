// One page: state, panes, keys, permalink. Everything that it says is computed from the model.

import { MAX_NUMBER, arrayOf, condition, reached } from "./formula.js";
import { Counter } from "./counting.js";
import { blended, layersPainter, maskPainter, shareColor, tilePainter } from "./cells.js";
import { BoxTiles, ClassTiles, formPainter } from "./forms.js";
import { PairShader, fits } from "./shader.js";
import { MaskMap, css } from "./map.js";
import { Compare, Price, Source, Why, proofOf } from "./panes.js";
import { count, heads, make, percent, tileCounts } from "./words.js";

const KINDS = { int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array };
const PIECES = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999"];
const TWIN = { rows: 32, columns: 72 };
const STRIP = 40;  // cells along the side of a head's small picture
const NEAR = 5;  // CSS pixels of a pair from which on a single one is meant

export class Explorer {
  /** `ask(query)`: fetches another model where a server is there; else null. */
  constructor(root, model, ask = null) {
    this.root = root;
    this.model = model;
    this.ask = ask;
    this.rebuild = ask && ((settings) => this.#replaced({ ...this.settings, ...settings }));
    this.compareWith = ask && ((expression) => this.#replaced(this.settings, expression));
    this.settings = model.settings ?? {};
    this.#start();
    const { linked } = this, wanted = linked && (linked.other || Object.keys(linked.settings).length);
    if (ask && (model.pending || wanted)) {
      const other = linked?.other || (model.other?.expression ?? model.with);
      this.#replaced({ ...this.settings, ...linked?.settings }, other).catch((error) => { this.alarm.textContent = error.message; });
    }
  }

  #start() {
    const { model } = this;
    this.masks = [model.mask, ...(model.other ? [model.other.mask] : [])];
    this.pools = this.masks.map(({ arrays }) => Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, decoded(array)])));
    const seen = new Map(this.masks.flatMap(({ params }) => params.map((param) => [param.name, param])));
    this.parameters = [...seen.values()];
    this.state = {
      n_q: model.mask.n_q, n_kv: model.mask.n_kv, set: 0, mode: "mask", twin: false, theme: "",
      params: Object.fromEntries(this.parameters.map(({ name, value }) => [name, value])),
    };
    this.epoch = 0;
    this.kept = new Map();
    this.#build();
    if (this.before) this.#restored();
    else this.#readPermalink();
    this.changed();
    this.map.resized();
    if (this.wantedView && !this.before?.fitted) this.map.setView(this.wantedView);
    else this.map.fit();
    if (this.wantedCursor) this.map.point(this.wantedCursor.q, this.wantedCursor.k);
  }

  // ---------------------------------------------------------------- what is shown

  /** The set of mask `which` that the chosen head has. */
  set(which = 0) {
    const mask = this.masks[which], head = this.masks[0].sets[this.state.set].heads[0] ?? 0;
    if (which === 0) return mask.sets[this.state.set];
    return mask.sets.find(({ heads: own }) => own.includes(head)) ?? mask.sets[0];
  }

  env(which = 0, set = this.set(which)) {
    const { n_q, n_kv, params } = this.state, { arrays } = set;
    return { n_q, n_kv, params, arrays: Object.fromEntries(Object.entries(arrays).map(([name, key]) => [name, this.pools[which][key]])) };
  }

  /** The magnitude of everything that formulas read. */
  magnitudes(which = 0) {
    const { n_q, n_kv, params } = this.state, { arrays } = this.env(which);
    const extremes = Object.entries(arrays).map(([name, array]) => [name, array.most ??= array.extreme()]);
    return { n_q, n_kv, q: Math.max(0, n_q - 1), k: Math.max(0, n_kv - 1), ...params, ...Object.fromEntries(extremes) };
  }

  get drawable() {
    return this.masks.every((_, which) => this.set(which).keep !== null && reached(this.set(which).bound, this.magnitudes(which)) <= MAX_NUMBER);
  }

  /** What was made for this state, made once. */
  once(name, makeIt) {
    const key = `${this.state.set} ${name}`;
    if (!this.kept.has(key)) this.kept.set(key, makeIt());
    return this.kept.get(key);
  }

  counter(which = 0) {
    return this.once(`counter ${which}`, () => new Counter(condition(this.set(which).keep, this.env(which))));
  }

  /** The heads that have the shown sets of both masks; none where all have. */
  get comparedHeads() {
    const [first, second] = [this.set(0).heads, this.set(1).heads];
    return first.length && second.length ? first.filter((head) => second.includes(head)) : [...first, ...second];
  }

  /** Counters of what only the first mask has, only the second, and both. */
  compared() {
    return this.once("compared", () => {
      const arrays = { ...this.env(0).arrays, ...Object.fromEntries(Object.entries(this.env(1).arrays).map(([name, array]) => [`other ${name}`, array])) };
      const env = { ...this.env(0), arrays }, one = this.set(0).keep, other = renamed(this.set(1).keep);
      const of = (tree) => new Counter(condition(tree, env));
      return { first: of(["and", one, ["not", other]]), second: of(["and", other, ["not", one]]), both: of(["and", one, other]) };
    });
  }

  /** Counters of the live pairs whose query and key one rank holds, and of those whose key travels. */
  held() {
    return this.once("held", () => {
      const { n, edges, owner } = this.model.ranks, holders = new Int32Array(n);
      owner.forEach((rank, i) => holders.fill(rank, edges[i], edges[i + 1]));
      const env = this.env();
      env.arrays = { ...env.arrays, " holder": arrayOf(holders, [n]) };
      const of = (token) => ["load", " holder", token];
      const together = ["==", ["+", 0, [1, of("q")], [-1, of("k")]], "one rank holds query and key"];
      const { keep } = this.set(), counter = (tree) => new Counter(condition(tree, env));
      return [counter(["and", keep, together]), counter(["and", keep, ["not", together]])];
    });
  }

  get modes() {
    const modes = [["mask", "Mask"], ["tiles", "Tiles"], ["waste", "Waste"]];
    if (this.pieces().length > 1) modes.push(["parts", "Parts"]);
    if (this.model.other) modes.push(["difference", "Difference"]);
    for (const { mode, label } of this.model.forms ?? []) modes.push([mode, label]);
    if (this.model.ranks) modes.push(["ranks", "Ranks"]);
    return modes;
  }

  /** The form of tiles that a view shows, where these lengths and parameters have it. */
  form(mode = this.state.mode) {
    const form = this.model.forms?.find((each) => each.mode === mode), { n_q, n_kv } = this.state;
    if (!form || !this.drawable) return null;
    if (mode === "boxes") {
      const period = form.extents.reduce((a, b) => a * b, 1);
      if (n_q !== n_kv || n_q % period || Math.max(n_q / period, ...form.extents) > form.most || !n_q) return null;
      return this.once("form boxes", () => ({ ...form, tiled: [new BoxTiles(form, this.counter(), n_q)], names: ["live"] }));
    }
    const divides = form.divides.every((stride) => (n_kv - n_q) % stride === 0);
    const small = form.parts.every(({ bound }) => reached(bound, { ...this.magnitudes(), [form.of_all]: n_kv }) <= MAX_NUMBER);
    if (!divides || !small || (form.as_built && !this.asBuilt())) return null;
    return this.once("form classes", () => ({ ...form, tiled: form.parts.map((part) => new ClassTiles(part, this.env(), form.of_all)), names: form.parts.map(({ name }) => name) }));
  }

  /** Numbers of all forms' tiles, beside those of ordinary ones. */
  formTotals() {
    return this.once("form totals", () => (this.model.forms ?? []).map((form) => {
      const found = this.form(form.mode);
      if (!found) return { ...form, totals: null };
      const totals = found.tiled.map((each) => each.totals());
      const sum = (name) => totals.reduce((all, each) => all + each[name], 0);
      return { ...form, totals: { full: sum("full"), partial: sum("partial"), tiles: sum("tiles"), area: sum("area") } };
    }));
  }

  /** The tiles of the shown form that hold the pair under the pointer: { name, kind, q, k }. */
  formTiles() {
    const { cursor } = this.map, form = cursor && this.form();
    if (!form) return [];
    return form.tiled.map((each, i) => ({ ...each.tileAt(cursor.q, cursor.k), name: form.names[i] })).filter(({ q }) => q);
  }

  pieces() { return this.set().pieces ?? []; }

  /** What the compiler says of a call of these lengths, with these parameters; null elsewhere. */
  get taken() {
    const { taken } = this.model, { n_q, n_kv } = this.state;
    return taken?.n_q === n_q && taken.n_kv === n_kv && this.asBuilt() ? taken : null;
  }

  get tile() { return this.taken?.tile ?? this.model.price?.tile ?? [128, 128]; }

  /** What else there is to know of the masks that are shown, as sentences. */
  notes() {
    const notes = new Set(this.masks.flatMap((mask) => mask.notes));
    return [...notes].map((note) => ` ${note[0].toUpperCase()}${note.slice(1)}.`).join("");
  }

  /** Whose tiles these are, where a call may run others. */
  tileNote() {
    const { taken } = this;
    if (taken) return ` ${taken.said}.`;
    return this.model.price?.others ? " Tiles are those of the plan's first source; a call may run others." : "";
  }

  colors() {
    return this.once("colors", () => {
      const style = getComputedStyle(this.shell), names = ["full", "partial", "empty", "outside", "waste", "second", "only-a", "only-b", "both"];
      const found = Object.fromEntries(names.map((name) => [name, channels(style.getPropertyValue(`--${name}`).trim())]));
      const ink = Object.fromEntries(["ink", "quiet", "line", "paper"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      return { ...found, unknown: [128, 128, 128], ink };
    });
  }

  scene() {
    const { n_q, n_kv } = this.state, { ranks } = this.model;
    const shaped = this.model.forms?.some((form) => form.mode === this.state.mode);
    const planned = shaped ? this.form() !== null : this.state.mode !== "ranks" || (n_q === ranks.n && n_kv === ranks.n);
    const mode = planned ? this.state.mode : "mask", colors = this.colors();
    const scene = { n_q, n_kv, colors, ink: colors.ink, tile: ["tiles", "waste"].includes(mode) ? this.tile : null, name: `${this.epoch} ${this.state.set} ${mode}` };
    if (!this.drawable) return scene;
    if (mode === "ranks") scene.strips = { edges: ranks.edges, colors: ranks.owner.map((rank) => PIECES[rank % PIECES.length]) };
    if (shaped && planned) scene.runs = this.formTiles().filter(({ kind }) => kind);
    scene.painter = this.once(`painter ${mode}`, () => this.#painter(mode, colors));
    if (mode === "mask" || mode === "difference") scene.pairs = (view) => this.#pairs(mode, view, colors);
    return scene;
  }

  #painter(mode, colors) {
    const env = this.env();
    switch (mode) {
      case "tiles": case "waste": return tilePainter(this.counter(), env, this.tile, colors, mode === "waste");
      case "parts": {
        const counters = this.pieces().map((piece) => new Counter(condition(piece.keep, env)));
        const layers = counters.map((_, i) => channels(PIECES[i % PIECES.length]));
        return layersPainter(counters, env, colors, (shares) => blended(shares, layers, colors.empty));
      }
      case "boxes": case "classes": {
        const { tiled } = this.form();
        return formPainter(tiled, env, colors, this.#layers(tiled.length, colors), blended);
      }
      case "ranks": {
        const layers = [colors.full, colors.waste];
        return layersPainter(this.held(), env, colors, (shares) => blended(shares, layers, colors.empty));
      }
      case "difference": {
        const { first, second, both } = this.compared();
        const layers = [colors["only-a"], colors["only-b"], colors.both];
        return layersPainter([first, second, both], env, colors, (shares) => blended(shares, layers, colors.empty));
      }
    }
    return maskPainter(this.counter(), env, colors);
  }

  /** Colours of the parts of a form; the first has that of live pairs. */
  #layers(number, colors) {
    const first = [colors.full, colors.second];
    return Array.from({ length: number }, (_, i) => first[i] ?? channels(PIECES[[2, 3, 6, 7][i % 4]]));
  }

  #pairs(mode, view, colors) {
    const which = mode === "difference" ? [0, 1] : [0];
    const exact = which.every((i) => fits(this.set(i), this.magnitudes(i)));
    if (!exact || this.noShader) return false;
    try {
      this.shader ??= new PairShader(this.map.pairCanvas, () => {
        this.noShader = "the browser took the graphics context away";  // other pages, or cells, need it
        this.map.redraw();
      });
      const share = (color) => color.map((c) => c / 255);
      const { n_q, n_kv } = this.state;
      this.shader.draw(which.map((i) => ({ set: this.set(i), env: this.env(i) })), { ...view, n_q, n_kv }, {
        live: share(mode === "mask" ? colors.full : colors.both), dead: share(colors.empty), outside: share(colors.outside),
        ...(mode === "difference" ? { first: share(colors["only-a"]), second: share(colors["only-b"]) } : {}),
      });
      return true;
    } catch (error) {
      this.noShader = error.message;  // cells of single pairs show the same
      return false;
    }
  }

  // ---------------------------------------------------------------- questions of the panes

  /** What is pointed at: a pair, or the cell around it where pairs are small. */
  pointedBox() {
    const { cursor, view, level } = this.map;
    if (!cursor) return null;
    if (view.scale >= NEAR) return { q0: cursor.q, q1: cursor.q + 1, k0: cursor.k, k1: cursor.k + 1, open: [] };
    const size = 2 ** Math.max(level, Math.ceil(Math.log2(NEAR / view.scale)));
    const q0 = Math.floor(cursor.q / size) * size, k0 = Math.floor(cursor.k / size) * size;
    return { q0, q1: Math.min(q0 + size, this.state.n_q), k0, k1: Math.min(k0 + size, this.state.n_kv), open: [] };
  }

  termsAt(box) {
    const area = (box.q1 - box.q0) * (box.k1 - box.k0);
    return this.set().terms.map((term, i) => {
      const counter = this.once(`term ${i}`, () => new Counter(condition(term.keep, this.env())));
      return { term, share: counter.pairs(box.q0, box.q1, box.k0, box.k1) / area };
    });
  }

  proof(box) {
    const counter = this.counter(), found = counter.holds.fold({ ...box, open: [] }, []);
    const one = box.q1 - box.q0 === 1 && box.k1 - box.k0 === 1;
    if (found !== null) {
      const said = one ? (found ? "The query sees the key:" : "The query does not see the key:") : found ? "Full: every pair is live, because" : "Empty: no pair is live, because";
      const unique = new Map(proofOf(counter.holds, box, found));
      return { said, steps: [...unique] };
    }
    const area = (box.q1 - box.q0) * (box.k1 - box.k0), live = counter.pairs(box.q0, box.q1, box.k0, box.k1);
    if (Number.isNaN(live)) return { said: "Counting these pairs would take too long.", steps: [] };
    if (live === 0 || live === area) return { said: `${live ? "Full" : "Empty"}: counted, ${count(live)} of ${count(area)} pairs are live.`, steps: [] };
    return { said: `Partial: ${count(live)} of ${count(area)} pairs are live.`, steps: [] };
  }

  tileWords() {
    const { cursor } = this.map, [height, width] = this.tile, { n_q, n_kv } = this.state;
    if (!cursor) return "";
    if (this.state.mode === "ranks") return this.#rankWords();
    const shaped = this.model.forms?.find(({ mode }) => mode === this.state.mode);
    if (shaped) {
      if (!this.form()) return `Lengths or parameters have no ${shaped.label.toLowerCase()}: ${shaped.only}.`;
      const found = this.formTiles(), kinds = ["empty: no kernel loads it", `partial: ${shaped.partial}`, "full: the kernel tests no pair in it"];
      if (!found.length) return "No tile of any part holds this pair.";
      return found.map(({ name, kind, q, k }) => `${name === "live" ? "The" : `${name}: the`} tile of queries ${runs(q)} and keys ${runs(k)} is ${kinds[kind]}.`).join(" ");
    }
    const i = Math.floor(cursor.q / height), j = Math.floor(cursor.k / width);
    const box = [i * height, Math.min((i + 1) * height, n_q), j * width, Math.min((j + 1) * width, n_kv)];
    const live = this.counter().pairs(...box), area = (box[1] - box[0]) * (box[3] - box[2]);
    const partial = this.taken?.partial ?? this.model.price?.partial ?? "some of its pairs are live";
    const kind = Number.isNaN(live) ? "its pairs take too long to count" : live === area ? "full: the kernel tests no pair in it" : live ? `partial: ${partial}` : "empty: the kernel never loads it";
    const row = this.counter().tiles(box[0], box[1], 0, n_kv, height, width), wide = Math.ceil(n_kv / width);
    const inRow = Number.isNaN(row.full) ? "" : ` In its row, ${count(row.full + row.partial)} of ${count(wide)} tiles run.`;
    return `Tile (${i}, ${j}) of ${height} x ${width}: ${Number.isNaN(live) ? "" : `${count(live)} live, `}${kind}.${inRow}`;
  }

  #rankWords() {
    const { cursor } = this.map, { n, edges, owner, halo } = this.model.ranks;
    if (this.state.n_q !== n || this.state.n_kv !== n) return `The plan of ranks is for ${count(n)} tokens.`;
    const [query, key] = [cursor.q, cursor.k].map((token) => owner[edges.findLastIndex((edge) => edge <= token)]);
    const travels = query === key ? "which holds the key, too" : this.counter().holds.at(cursor.q, cursor.k) ? `to which the key travels from rank ${key}` : `rank ${key} holds the key`;
    const planned = this.asBuilt() ? ` ${count(halo[query])} keys travel to rank ${query}.` : "";
    return `Rank ${query} runs the query, ${travels}.${planned}`;
  }

  price() {
    return this.once("price", () => {
      const { n_q, n_kv } = this.state, [height, width] = this.tile, { price } = this.model;
      const counted = this.counter().pairs(0, n_q, 0, n_kv), live = Number.isNaN(counted) ? this.compilersCount ?? NaN : counted;
      const { full, partial, area } = this.counter().tiles(0, n_q, 0, n_kv, height, width);
      const dims = price?.dims ?? 256, size = price?.itemsize ?? 2;
      const flops = 2 * dims * live, bytes = size * dims * (n_q + width * (full + partial));
      const found = {
        live, pairs: n_q * n_kv, tile: this.tile, full, partial, area, flops, bytes,
        forms: this.formTotals(), ranks: this.asBuilt() && n_q === n_kv && n_q === this.model.ranks?.n ? this.model.ranks : null,
        empty: Math.ceil(n_q / height) * Math.ceil(n_kv / width) - full - partial, checked: this.#checked(counted),
      };
      if (price?.card && !Number.isNaN(area)) {
        const compute = (2 * dims * area) / (price.card.tflops * 1e9), memory = bytes / (price.card.gbytes * 1e6);
        const number = this.set().heads.length || price.heads;
        found.roof = { ms: number * Math.max(compute, memory), heads: number, by: compute >= memory ? "arithmetic" : "memory" };
      }
      const point = this.asBuilt() && price?.curve?.find(({ n }) => n === n_q && n === n_kv);
      if (point) found.predicted = { ms: point.mask, card: price.card.name, heads: price.heads };
      return found;
    });
  }

  /** Whether all parameters have the values that the compiler was given. */
  asBuilt() {
    return this.parameters.every(({ name, value }) => this.state.params[name] === value);
  }

  /** The live pairs of a head as the compiler counts them; null for other lengths or parameters. */
  get compilersCount() {
    const { n_q, n_kv } = this.state, { mask } = this.model;
    return this.asBuilt() && n_q === mask.n_q && n_kv === mask.n_kv ? this.set().live : null;
  }

  #checked(live) {
    const wanted = this.compilersCount;
    if (Number.isNaN(live)) return `Counting here would take too long.${wanted === null ? "" : " The live pairs are the compiler's count."}`;
    if (wanted === null) return "Counted exactly, here in the page.";
    return live === wanted ? "Counted exactly; the compiler's own count is the same."
      : `The compiler counts ${count(wanted)}: please report that this page does not.`;
  }

  /** Milliseconds by N: dense attention's are the compiler's, the mask's follow what runs. */
  curve() {
    return this.once("curve", () => {
      const points = this.model.price?.curve ?? [];
      if (!points.length || !this.drawable || this.masks[0].fixed) return [];
      if (this.asBuilt()) return points;
      const [height, width] = this.tile, env = this.env();
      return points.map(({ n, dense }) => {
        const counter = new Counter(condition(this.set().keep, { ...env, n_q: n, n_kv: n }), 5e4);
        return { n, dense, mask: (dense * counter.tiles(0, n, 0, n, height, width).area) / n ** 2 };
      });
    });
  }

  curveWords() {
    const { heads: number } = this.model.price, of = `Of ${number} ${number === 1 ? "head" : "heads"}. `;
    return of + (this.asBuilt() ? "Both are predicted by the compiler's cost model." : "With these parameters the mask is drawn in proportion to the pairs that run.");
  }

  differences() {
    return this.once("differences", () => {
      const { n_q, n_kv } = this.state, parts = this.compared();
      return Object.fromEntries(Object.entries(parts).map(([name, counter]) => [name, counter.pairs(0, n_q, 0, n_kv)]));
    });
  }

  /** A pair that only one of the masks has, at these lengths; null where there is none. */
  witness() {
    return this.once("witness", () => {
      const { n_q, n_kv } = this.state, { first, second } = this.compared();
      for (const counter of [first, second]) {
        const found = firstPair(counter, 0, n_q, 0, n_kv);
        if (found) return found;
      }
      return null;
    });
  }

  flyToWitness() {
    const found = this.witness();
    if (!found) return;
    this.setMode("difference");
    this.map.flyTo(found.q, found.k, 24);
    this.map.pinned = true;
  }

  // ---------------------------------------------------------------- changes

  setLengths(n_q, n_kv) {
    Object.assign(this.state, { n_q, n_kv });
    this.changed();
    this.map.fit();
  }

  setParam(name, value) {
    this.state.params[name] = value;
    this.changed();
  }

  setMode(mode) {
    this.state.mode = mode;
    this.#shown();
  }

  setHead(set) {
    this.state.set = (set + this.masks[0].sets.length) % this.masks[0].sets.length;
    this.#shown();
  }

  setTheme(theme) {
    this.state.theme = theme;
    if (theme) this.shell.dataset.theme = theme; else delete this.shell.dataset.theme;
    this.changed();
  }

  /** Numbers changed: nothing that was computed counts any more. */
  changed() {
    this.epoch++;
    this.kept.clear();
    this.map.cells.forget();
    const { cursor } = this.map, { n_q, n_kv } = this.state;
    if (cursor) this.map.cursor = { q: Math.min(cursor.q, Math.max(0, n_q - 1)), k: Math.min(cursor.k, Math.max(0, n_kv - 1)) };
    this.#shown();
  }

  #shown() {
    for (const [name, button] of this.modeButtons) button.setAttribute("aria-pressed", String(name === this.state.mode));
    this.headButtons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === this.state.set)));
    this.#legend();
    this.map.redraw();
    this.#later();
  }

  /** Panes follow behind the picture, once a frame. */
  #later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => setTimeout(() => {
      this.waiting = false;
      for (const each of [this.why, this.pricing, this.source, this.comparing]) each.update();
      this.#place();
      this.#drawStrip();
      this.#twin();
      this.#writePermalink();
    }));
  }

  pointed() { this.#later(); }
  moved() { this.#later(); }

  /** Another model in the place of this one; what was moved stays where it is. */
  async #replaced(settings, other = this.model.other?.expression ?? this.model.with) {
    const model = await this.ask({ settings, other, n_q: this.state.n_q, n_kv: this.state.n_kv });
    const before = { state: this.state, view: { ...this.map.view }, cursor: this.map.cursor, pinned: this.map.pinned, fitted: this.map.fitted };
    const compares = model.other && !this.model.other && !this.model.pending;
    Object.assign(this, { settings, model, shader: undefined, before });
    this.root.replaceChildren();
    this.#start();
    if (compares) this.setMode("difference");
  }

  // ---------------------------------------------------------------- elements

  #build() {
    const { model } = this;
    this.shell = make("div", { class: "maskc", tabindex: "-1" });
    this.canvasBox = make("div", { class: "map", role: "application", tabindex: "0", "aria-label": `map of the mask ${model.name}: queries down, keys right; press ? for keys` });
    this.legendBox = make("div", { class: "legend" });
    this.modeButtons = this.modes.map(([name, label]) => [name, make("button", { onclick: () => this.setMode(name) }, label)]);
    const { sets } = this.masks[0];
    this.headButtons = sets.length > 1
      ? sets.map((set, i) => make("button", { onclick: () => this.setHead(i), title: heads(set.heads) }, make("canvas", { width: STRIP, height: STRIP, "aria-hidden": "true" }), heads(set.heads)))
      : [];
    const strip = this.headButtons.length ? make("div", { class: "strip", role: "group", "aria-label": "heads" }, ...this.headButtons) : null;
    this.twinBox = make("pre", { class: "twin", hidden: true, tabindex: "0", "aria-label": "the map as text" });
    this.placeBox = make("span", { class: "place-now", "aria-live": "polite" });
    this.alarm = make("span", { class: "alarm" });
    this.dialog = help();
    this.map = new MaskMap(this.canvasBox, this);
    this.why = new Why(this);
    this.pricing = new Price(this);
    this.source = new Source(this);
    this.comparing = new Compare(this);
    const themes = ["", "light", "dark"];
    this.shell.append(
      make("header", {}, make("h1", {}, model.name), make("span", { class: "formula" }, this.masks[0].formula),
        make("div", { class: "tools" },
          make("button", { onclick: () => this.setTheme(themes[(themes.indexOf(this.state.theme) + 1) % 3]), title: "light, dark, or as the system has it" }, "Theme"),
          make("button", { onclick: () => this.toggleTwin(), title: "the map as text" }, "Text"),
          make("button", { onclick: () => this.dialog.showModal() }, "Keys"))),
      make("main", {},
        make("div", { class: "left" },
          make("div", { class: "bar" }, ...this.modeButtons.map(([, button]) => button),
            make("button", { onclick: () => this.map.zoom(2), "aria-label": "closer" }, "+"), make("button", { onclick: () => this.map.zoom(0.5), "aria-label": "farther" }, "−"),
            make("button", { onclick: () => this.map.fit() }, "Whole"), this.legendBox),
          strip, this.canvasBox, this.twinBox),
        make("div", { class: "panes" }, ...[this.why, this.pricing, this.source, this.comparing].map(({ section }) => section))),
      make("footer", {}, this.placeBox, this.alarm, make("span", {}, model.title ?? ""), make("span", {}, this.notes()), make("span", { class: "help" }, "? for keys")),
      this.dialog,
    );
    this.root.append(this.shell);
    this.shell.addEventListener("keydown", (event) => this.key(event));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.changed());
  }

  #legend() {
    const colors = this.colors(), { mode } = this.state, { model } = this;
    const entries = {
      mask: this.map.level ? [["full", "all live"], ["partial", "some live, by share"], ["empty", "none"]] : [["full", "the query sees the key"], ["empty", "it does not"]],
      tiles: [["full", "full"], ["partial", "partial"], ["empty", "empty"]],
      waste: [["full", "live"], ["waste", "run, but not live"], ["empty", "not run"]],
      ranks: [["full", "one rank holds query and key"], ["waste", "the key travels to the query's rank"], ["empty", "not live"]],
      difference: [["only-a", `only in ${model.name}`], ["only-b", `only in ${model.other?.name}`], ["both", "in both"], ["empty", "in none"]],
    }[mode]?.map(([name, label]) => [colors[name], label]) ?? this.#formLegend(colors) ?? this.pieces().map((piece, i) => [channels(PIECES[i % PIECES.length]), piece.kind, piece.text]);
    this.legendBox.replaceChildren(...entries.map(([color, label, title]) => {
      const square = make("i");
      square.style.background = `rgb(${color.join(",")})`;
      return make("span", { title }, square, label);
    }));
  }

  /** [colour, label] of everything on the map. */
  painted() { return this.#formLegend(this.colors()) ?? []; }

  #formLegend(colors) {
    const shaped = this.model.forms?.find((form) => form.mode === this.state.mode), form = this.form();
    if (!shaped) return null;
    if (!form) return [[colors.full, `no ${shaped.label.toLowerCase()} at these lengths`, shaped.only]];
    const layers = this.#layers(form.names.length, colors);
    return [...form.names.map((name, i) => [layers[i], name]), [colors.waste, "run, but not live"], [colors.empty, "not run"]];
  }

  /** Small pictures of all heads, one after another behind the large one. */
  #drawStrip() {
    if (!this.headButtons.length || this.striped === this.epoch || !this.drawable) return;
    this.striped = this.epoch;
    const { epoch } = this, { n_q, n_kv } = this.state, colors = this.colors();
    const draw = (i) => {
      const button = this.headButtons[i];
      if (epoch !== this.epoch || !button?.isConnected) return;
      const set = this.masks[0].sets[i], counter = new Counter(condition(set.keep, this.env(0, set)), 2e4);
      const context = button.firstChild.getContext("2d"), edge = (length, at) => Math.floor((length * at) / STRIP);
      for (let y = 0; y < STRIP; y++) {
        for (let x = 0; x < STRIP; x++) {
          const box = [edge(n_q, y), Math.max(edge(n_q, y) + 1, edge(n_q, y + 1)), edge(n_kv, x), Math.max(edge(n_kv, x) + 1, edge(n_kv, x + 1))];
          const share = counter.pairs(...box) / ((box[1] - box[0]) * (box[3] - box[2]));
          context.fillStyle = css(shareColor(share, colors));
          context.fillRect(x, y, 1, 1);
        }
      }
      setTimeout(() => draw(i + 1));
    };
    if (n_q && n_kv) setTimeout(() => draw(0));
  }

  #place() {
    const { cursor, view } = this.map, { n_q, n_kv } = this.state;
    const scale = view.scale >= 1 ? `${view.scale.toPrecision(3)} pixels a pair` : `${(1 / view.scale).toPrecision(3)} pairs a pixel`;
    let seen = "";
    if (cursor && this.drawable) seen = `query ${cursor.q} ${this.counter().holds.at(cursor.q, cursor.k) ? "sees" : "does not see"} key ${cursor.k} · `;
    this.placeBox.textContent = `${seen}${count(n_q)} x ${count(n_kv)} · ${scale}`;
    this.alarm.textContent = this.drawable ? "" : "numbers of this formula leave 53 bits: the page does not draw what it cannot compute exactly";
    if (this.drawable && this.foreign) this.alarm.textContent = this.foreign;
    this.#legend();
  }

  // ---------------------------------------------------------------- the text twin

  toggleTwin() {
    this.state.twin = !this.state.twin;
    this.twinBox.hidden = !this.state.twin;
    this.map.resized();
    this.#twin();
  }

  #twin() {
    if (!this.state.twin) return;
    const { q, k, scale } = this.map.view, { width, height } = this.map;
    const shown = [this.epoch, this.state.set, this.state.mode, q, k, scale, width, height].join(" ");
    if (shown !== this.twinShown) this.twinBox.textContent = this.text();
    this.twinShown = shown;
  }

  /** The map as it is on the screen, in characters, with exact numbers. */
  text({ rows, columns } = TWIN) {
    const { n_q, n_kv } = this.state, { q, k, scale } = this.map.view;
    const ends = (from, pixels, length) => [Math.max(0, Math.floor(from)), Math.min(length, Math.ceil(from + pixels / scale))];
    const [q0, q1] = ends(q, this.map.height, n_q), [k0, k1] = ends(k, this.map.width, n_kv);
    if (!this.drawable || q0 >= q1 || k0 >= k1) return "nothing of the mask is in view";
    const down = Math.max(1, Math.ceil((q1 - q0) / rows)), right = Math.max(1, Math.ceil((k1 - k0) / columns));
    const area = (q1 - q0) * (k1 - k0), live = this.counter().pairs(q0, q1, k0, k1), layers = this.#twinLayers();
    const sums = layers.map(() => 0), lines = [];
    for (let i = q0; i < q1; i += down) {
      let line = "";
      for (let j = k0; j < k1; j += right) {
        const box = [i, Math.min(i + down, q1), j, Math.min(j + right, k1)];
        const found = layers.map(({ pairs }) => pairs(...box));
        found.forEach((value, n) => { sums[n] += value; });
        line += this.#sign(layers, found, (box[1] - box[0]) * (box[3] - box[2]));
      }
      lines.push(line);
    }
    const said = [
      `queries ${q0} to ${q1 - 1} down, keys ${k0} to ${k1 - 1} right; a character is ${down} x ${right} pairs`,
      `${count(live)} of ${count(area)} pairs are live (${percent(live / area)})${layers.length > 1 ? "" : "; # all, + some, . none"}`,
      ...(layers.length > 1 ? layers.map(({ sign, label }, n) => `${sign} ${label}: ${count(sums[n])} pairs`) : []),
      ...(layers.length > 1 ? ["a character names what most of its pairs are; . nothing of these"] : []),
      ...this.#tileNumbers(), "", ...lines,
    ];
    return said.join("\n");
  }

  /** What the shown view colours, as signs: { sign, label, pairs(q0, q1, k0, k1) }. */
  #twinLayers() {
    const { mode } = this.state, { model } = this;
    const of = (counter) => (...box) => counter.pairs(...box);
    if (mode === "parts") return this.pieces().map((piece, i) => ({ sign: "123456789"[i] ?? "*", label: `${piece.kind}: ${piece.text}`, pairs: of(this.once(`piece ${i}`, () => new Counter(condition(piece.keep, this.env())))) }));
    if (mode === "difference") {
      const { first, second, both } = this.compared();
      return [["a", `only in ${model.name}`, first], ["b", `only in ${model.other.name}`, second], ["=", "in both", both]].map(([sign, label, counter]) => ({ sign, label, pairs: of(counter) }));
    }
    if (mode === "ranks" && this.state.n_q === model.ranks.n && this.state.n_kv === model.ranks.n) {
      const [held, sent] = this.held();
      return [{ sign: "#", label: "one rank holds query and key", pairs: of(held) }, { sign: ">", label: "the key travels", pairs: of(sent) }];
    }
    const form = this.form();
    if (form) {
      const sum = (name) => (...box) => form.tiled.reduce((all, each) => all + each.region(...box)[name], 0);
      const parts = form.tiled.map((each, i) => ({ sign: "#23456789"[i] ?? "*", label: form.names[i], pairs: (...box) => each.region(...box).live }));
      return [...parts, { sign: "x", label: "run, but not live", pairs: (...box) => sum("run")(...box) - sum("live")(...box) }];
    }
    return [{ pairs: of(this.counter()) }];
  }

  #sign(layers, found, area) {
    if (found.some(Number.isNaN)) return "?";
    if (layers.length === 1) return found[0] === 0 ? "." : found[0] === area ? "#" : "+";
    const most = Math.max(...found);
    return most > 0 ? layers[found.indexOf(most)].sign : ".";
  }

  /** Numbers of tiles, where tiles are shown. */
  #tileNumbers() {
    const price = this.price(), said = (tiles, name) => `${name}: ${tileCounts(tiles)}${Number.isNaN(tiles.area + price.live) ? "" : `; they run ${(tiles.area / Math.max(1, price.live)).toFixed(2)} x the live pairs`}`;
    if (["tiles", "waste"].includes(this.state.mode)) return [said(price, `tiles of ${price.tile.join(" x ")} of the whole mask`)];
    return price.forms.filter(({ mode, totals }) => mode === this.state.mode && totals).map((form) => said(form.totals, form.said));
  }

  // ---------------------------------------------------------------- keys

  key(event) {
    if (this.dialog.open) return;  // its keys are the browser's: Escape closes it
    const inField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || (inField && event.key !== "Escape")) return;
    const step = event.shiftKey ? 0.5 : 0.12, { map } = this;
    const cursor = map.cursor ?? map.pairAt(map.width / 2, map.height / 2);
    const walk = (q, k) => { map.pinned = true; map.point(cursor.q + q, cursor.k + k); this.#follow(); };
    const scrolls = event.target.closest(".code, .twin, .panes") && /Arrow|Page|Home|End/.test(event.key);
    if (scrolls) return;
    const size = Math.max(1, 2 ** map.level);
    const action = {
      ArrowLeft: () => map.pan(-step * map.width, 0), ArrowRight: () => map.pan(step * map.width, 0),
      ArrowUp: () => map.pan(0, -step * map.height), ArrowDown: () => map.pan(0, step * map.height),
      "+": () => map.zoom(2), "=": () => map.zoom(2), "-": () => map.zoom(0.5), 0: () => map.fit(), Home: () => map.fit(),
      a: () => walk(0, -size), d: () => walk(0, size), w: () => walk(-size, 0), s: () => walk(size, 0),
      Enter: () => event.target === this.canvasBox && map.flyTo(cursor.q, cursor.k, Math.max(map.view.scale, 24)),
      Escape: () => { map.pinned = false; this.canvasBox.focus(); },
      h: () => this.setHead(this.state.set + 1), H: () => this.setHead(this.state.set - 1),
      m: () => this.#nextMode(), f: () => this.model.other && this.flyToWitness(), t: () => this.toggleTwin(),
      "?": () => this.dialog.showModal(), l: () => this.setTheme(this.state.theme === "dark" ? "light" : "dark"),
      1: () => this.canvasBox.focus(), 2: () => this.why.section.focus(), 3: () => this.pricing.section.focus(),
      4: () => this.source.section.focus(), 5: () => this.comparing.section.focus(),
    }[event.key];
    if (!action) return;
    if (event.key === "Enter" && event.target !== this.canvasBox) return;
    event.preventDefault();
    action();
  }

  #nextMode() {
    const names = this.modes.map(([name]) => name);
    this.setMode(names[(names.indexOf(this.state.mode) + 1) % names.length]);
  }

  /** The view moves where the cursor left it. */
  #follow() {
    const { map } = this, { q, k, scale } = map.view, { cursor } = map;
    const out = (at, from, pixels) => at < from || at + 1 > from + pixels / scale;
    if (out(cursor.q, q, map.height) || out(cursor.k, k, map.width)) map.setView({ q: cursor.q - map.height / 2 / scale, k: cursor.k - map.width / 2 / scale, scale });
  }

  // ---------------------------------------------------------------- permalink

  /** Everything that the page was set to; the mask is said in words, as the link may be sent alone. */
  permalink() {
    const { n_q, n_kv, set, mode, params, theme } = this.state, { q, k, scale } = this.map.view, { cursor } = this.map;
    const said = new URLSearchParams({ mask: this.#named(), n: n_q, m: n_kv });
    for (const [name, value] of Object.entries(this.settings)) said.set(`set.${name}`, value);
    if (this.model.other?.expression || this.model.with) said.set("with", this.model.other?.expression ?? this.model.with);
    for (const [name, value] of Object.entries(params)) said.set(`p.${name}`, value);
    if (set) said.set("set", set);
    if (mode !== "mask") said.set("show", mode);
    if (theme) said.set("theme", theme);
    if (this.state.twin) said.set("text", 1);
    said.set("view", [q, k, scale].map((x) => Number(x.toPrecision(12))).join(","));
    if (cursor) said.set("at", `${cursor.q},${cursor.k}`);
    return said.toString();
  }

  #named() { return this.model.expression || this.model.name; }

  #writePermalink() {
    if (this.model.embedded) return;
    clearTimeout(this.writing);
    this.writing = setTimeout(() => {
      try { history.replaceState(null, "", `#${this.permalink()}`); } catch { /* a browser may refuse so many */ }
    }, 250);
  }

  /** What was moved in the model before. */
  #restored() {
    const { state, view, cursor, pinned } = this.before;
    Object.assign(this.state, { set: Math.min(state.set, this.masks[0].sets.length - 1), twin: state.twin, theme: state.theme });
    const shown = [this.linked?.mode, state.mode].find((mode) => this.modes.some(([name]) => name === mode));
    this.state.mode = shown ?? this.state.mode;
    for (const { name } of this.parameters) this.state.params[name] = state.params[name] ?? this.linked?.param(name) ?? this.state.params[name];
    if (this.linked && !this.model.pending) this.linked = null;  // from here on, what one moves counts
    if (state.theme) this.shell.dataset.theme = state.theme;
    this.twinBox.hidden = !state.twin;
    Object.assign(this, { wantedView: view, wantedCursor: cursor });
    this.map.pinned = pinned;
  }

  #readPermalink() {
    if (this.model.embedded) return;
    const said = new URLSearchParams(location.hash.slice(1)), whole = (name, most) => {
      const value = Number(said.get(name));
      return said.get(name) !== null && Number.isInteger(value) && value >= 0 && value <= most ? value : null;
    };
    if (!said.size) return;
    const settings = Object.fromEntries([...said].filter(([name, value]) => name.startsWith("set.") && this.settings[name.slice(4)] !== value).map(([name, value]) => [name.slice(4), value]));
    const beside = this.model.other?.expression ?? this.model.with, other = said.get("with") === beside ? null : said.get("with");
    this.linked = { settings, other, mode: said.get("show"), param: (name) => whole(`p.${name}`, 2 ** 30) };
    const another = said.get("mask") !== null && said.get("mask") !== this.#named() ? [`mask ${said.get("mask")}`] : [];
    if (!this.ask) another.push(...Object.entries(settings).map(([name, value]) => `${name} = ${value}`), ...(other ? [`with ${other}`] : []));
    this.foreign = another.length ? `the address is of ${another.join(", ")}, which this page does not have` : "";
    if (said.get("text") === "1") { this.state.twin = true; this.twinBox.hidden = false; }
    if (!this.masks.some(({ fixed }) => fixed)) {
      this.state.n_q = whole("n", 2 ** 30) ?? this.state.n_q;
      this.state.n_kv = whole("m", 2 ** 30) ?? this.state.n_kv;
    }
    for (const { name } of this.parameters) this.state.params[name] = whole(`p.${name}`, 2 ** 30) ?? this.state.params[name];
    this.state.set = whole("set", this.masks[0].sets.length - 1) ?? 0;
    if (this.modes.some(([name]) => name === said.get("show"))) this.state.mode = said.get("show");
    if (["light", "dark"].includes(said.get("theme"))) { this.state.theme = said.get("theme"); this.shell.dataset.theme = this.state.theme; }
    const numbers = (name, length) => {
      const found = (said.get(name) ?? "").split(",").map(Number);
      return found.length === length && found.every(Number.isFinite) ? found : null;
    };
    const view = numbers("view", 3), at = numbers("at", 2);
    if (view && view[2] > 0) this.wantedView = { q: view[0], k: view[1], scale: view[2] };
    if (at) this.wantedCursor = { q: Math.floor(at[0]), k: Math.floor(at[1]) };
  }
}

// ------------------------------------------------------------------ small things

function decoded({ shape, kind, data }) {
  const bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
  return arrayOf(Int32Array.from(new KINDS[kind](bytes.buffer)), shape);
}

/** A formula whose arrays have names that no other mask uses. */
function renamed(tree) {
  if (!Array.isArray(tree)) return tree;
  if (tree[0] === "load") return ["load", `other ${tree[1]}`, ...tree.slice(2).map(renamed)];
  return tree.map(renamed);
}

function channels(color) {
  const digits = color.replace("#", "");
  return [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
}

/** The first live pair, query by query; null where there is none, or nobody knows. */
function firstPair(counter, q0, q1, k0, k1) {
  if (!(counter.pairs(q0, q1, k0, k1) > 0)) return null;
  while (q1 - q0 > 1) {
    const middle = Math.floor((q0 + q1) / 2);
    if (counter.pairs(q0, middle, k0, k1) > 0) q1 = middle; else q0 = middle;
  }
  while (k1 - k0 > 1) {
    const middle = Math.floor((k0 + k1) / 2);
    if (counter.pairs(q0, q1, k0, middle) > 0) k1 = middle; else k0 = middle;
  }
  return { q: q0, k: k0 };
}

/** "0 to 31, 64 to 95, ... (4 runs)": stretches of tokens for people. */
function runs(found) {
  const said = found.slice(0, 2).map(([from, end]) => (end - from === 1 ? `${from}` : `${from} to ${end - 1}`)).join(", ");
  if (found.length <= 2) return said;
  const [from, end] = found[found.length - 1];
  return `${said}, ... ${end - from === 1 ? from : `${from} to ${end - 1}`}`;
}

function help() {
  const keys = [
    ["← ↑ → ↓", "move, with Shift faster"], ["+ −", "closer, farther"], ["0", "the whole mask"], ["w a s d", "move the cursor by a pair or a cell"],
    ["Enter", "close to the cursor"], ["m", "next view: mask, tiles, waste, and what else there is"], ["h H", "next and previous set of heads"],
    ["f", "fly to a pair that tells both masks apart"], ["t", "the map as text"], ["l", "light or dark"], ["1 to 5", "map, why, price, source, compare"], ["n p", "in a source: next and previous line that came from the pattern"], ["Enter", "in a source: where that line came from"], ["Esc", "let the cursor go"],
  ];
  const dialog = make("dialog", { "aria-label": "keys" }, make("h2", {}, "Keys"),
    make("table", {}, make("tbody", {}, ...keys.map(([key, text]) => make("tr", {}, make("td", {}, make("kbd", {}, key)), make("td", {}, text))))),
    make("form", { method: "dialog" }, make("button", {}, "Close")));
  return dialog;
}
