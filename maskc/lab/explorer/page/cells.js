// Pictures of cells of 2^z x 2^z pairs, 256 x 256 cells each: exact shares, kept while one moves.

const SIDE = 256;
const KEPT = 600;

/**
 * A layer is { counter, color } of a set whose pairs no other layer has. `paint(shares)` gives
 * the colour of a cell from the share of its pairs that each layer has.
 */
export class CellPictures {
  constructor() {
    this.pictures = new Map();
  }

  forget() { this.pictures.clear(); }

  /** The picture at level z, column x, row y: { canvas, done }; made as far as `until` allows. */
  get(name, z, x, y, painter, until) {
    const key = `${name} ${z} ${x} ${y}`;
    let picture = this.pictures.get(key);
    if (!picture) {
      if (performance.now() >= until) return null;
      if (this.pictures.size >= KEPT) this.pictures.delete(this.pictures.keys().next().value);
      picture = new Picture(z, x, y, painter);
      this.pictures.set(key, picture);
    }
    if (!picture.done) picture.proceed(until);
    return picture;
  }
}

class Picture {
  constructor(z, x, y, painter) {
    this.z = z;
    this.painter = painter;
    this.x = x * SIDE;
    this.y = y * SIDE;
    this.canvas = document.createElement("canvas");
    this.canvas.width = this.canvas.height = SIDE;
    this.context = this.canvas.getContext("2d");
    this.image = this.context.createImageData(SIDE, SIDE);
    this.todo = [[0, SIDE, 0, SIDE]];
    this.done = false;
  }

  /** Boxes of cells are decided whole or cut into quarters, largest first. */
  proceed(until) {
    let count = 0;
    while (this.todo.length) {
      if ((++count & 3) === 0 && performance.now() >= until) break;
      const [i0, i1, j0, j1] = this.todo.pop();
      const found = this.painter.whole(this.z, this.y + i0, this.y + i1, this.x + j0, this.x + j1);
      if (found || i1 - i0 === 1) {
        this.#fill(i0, i1, j0, j1, found ?? this.painter.cell(this.z, this.y + i0, this.x + j0));
        continue;
      }
      const i = (i0 + i1) >> 1, j = (j0 + j1) >> 1;
      this.todo.push([i, i1, j, j1], [i, i1, j0, j], [i0, i, j, j1], [i0, i, j0, j]);
    }
    this.done = this.todo.length === 0;
    this.context.putImageData(this.image, 0, 0);
    if (this.done) this.image = null;
  }

  #fill(i0, i1, j0, j1, [red, green, blue]) {
    const words = new Uint32Array(this.image.data.buffer);
    const word = (255 << 24) | (blue << 16) | (green << 8) | red;
    for (let i = i0; i < i1; i++) words.fill(word, i * SIDE + j0, i * SIDE + j1);
  }
}

export { SIDE };

// ------------------------------------------------------------------ painters

const mixed = (one, other, share) => one.map((c, i) => Math.round(c + share * (other[i] - c)));
const FAINTEST = 0.45;  // strength of a cell with almost no live pair

/** The box of pairs of cells, inside the lengths. */
function boxOf(z, i0, i1, j0, j1, { n_q, n_kv }) {
  const size = 2 ** z;
  return {
    q0: Math.min(i0 * size, n_q), q1: Math.min(i1 * size, n_q),
    k0: Math.min(j0 * size, n_kv), k1: Math.min(j1 * size, n_kv), open: [],
  };
}

/** The mask: full, partial by its share, empty. */
export function maskPainter(counter, env, colors) {
  return layersPainter([counter], env, colors, ([share]) => shareColor(share, colors));
}

/** The colour of a cell from the share of its pairs that are live. */
export function shareColor(share, colors) {
  if (Number.isNaN(share)) return colors.unknown;
  if (share === 0) return colors.empty;
  if (share === 1) return colors.full;
  return mixed(colors.empty, colors.partial, FAINTEST + (1 - FAINTEST) * share);
}

/** Disjoint sets: every one adds its colour by its share. */
export function layersPainter(counters, env, colors, paint) {
  const whole = (z, i0, i1, j0, j1) => {
    const box = boxOf(z, i0, i1, j0, j1, env);
    if (box.q0 >= box.q1 || box.k0 >= box.k1) return colors.outside;
    const size = 2 ** z;
    const clipped = i1 * size > env.n_q || j1 * size > env.n_kv;
    if (clipped && i1 - i0 > 1) return null;
    const shares = [];
    for (const counter of counters) {
      box.open = [];
      const found = counter.holds.fold(box, []);
      if (found === null) {  // all cells are alike where everything repeats within them
        if (clipped || box.open.some(({ period }) => !period || size % period)) return null;
        shares.push(counter.pairs(box.q0, box.q0 + size, box.k0, box.k0 + size) / size ** 2);
      } else {
        shares.push(found ? 1 : 0);
      }
    }
    return shares.some(Number.isNaN) ? colors.unknown : paint(shares);
  };
  const cell = (z, i, j) => {
    const box = boxOf(z, i, i + 1, j, j + 1, env);
    const area = (box.q1 - box.q0) * (box.k1 - box.k0);
    const shares = counters.map((counter) => counter.pairs(box.q0, box.q1, box.k0, box.k1) / area);
    return shares.some(Number.isNaN) ? colors.unknown : paint(shares);
  };
  return { whole, cell };
}

export function blended(shares, layers, empty) {
  return empty.map((c, i) => Math.round(c + shares.reduce((sum, share, n) => sum + share * (layers[n][i] - c), 0)));
}

/** Classes of the kernel's tiles, or where they run dead pairs. */
export function tilePainter(counter, env, tile, colors, waste) {
  const [height, width] = tile;
  const down = (x, side) => Math.floor(x / side) * side, up = (x, side) => Math.ceil(x / side) * side;
  const around = (box) => [
    down(box.q0, height), Math.min(up(box.q1, height), env.n_q),
    down(box.k0, width), Math.min(up(box.k1, width), env.n_kv),
  ];
  const classes = new Map();
  const classOf = (q, k) => {  // of the tile that holds a pair: 0 empty, 1 partial, 2 full
    const i = down(q, height), j = down(k, width), name = i * 2 ** 22 + j / width;
    let found = classes.get(name);
    if (found === undefined) {
      const { full, partial } = counter.tiles(i, Math.min(i + height, env.n_q), j, Math.min(j + width, env.n_kv), height, width);
      found = full ? 2 : partial ? 1 : full === 0 ? 0 : NaN;
      if (classes.size > 1 << 16) classes.clear();
      classes.set(name, found);
    }
    return found;
  };
  const named = [colors.empty, colors.partial, colors.full];
  const whole = (z, i0, i1, j0, j1) => {
    const box = boxOf(z, i0, i1, j0, j1, env), size = 2 ** z;
    if (box.q0 >= box.q1 || box.k0 >= box.k1) return colors.outside;
    if ((i1 * size > env.n_q || j1 * size > env.n_kv) && i1 - i0 > 1) return null;
    const [q0, q1, k0, k1] = around(box);
    if (q1 - q0 <= height && k1 - k0 <= width) {  // inside one tile
      const own = classOf(box.q0, box.k0);
      if (Number.isNaN(own)) return colors.unknown;
      if (own !== 1 || !waste) return named[own];
      const all = counter.holds.fold(box, []);
      return all === null ? null : all ? colors.full : colors.waste;
    }
    const found = counter.holds.fold({ q0, q1, k0, k1, open: [] }, []);
    return found === null ? null : found ? colors.full : colors.empty;
  };
  const cell = (z, i, j) => {
    const box = boxOf(z, i, i + 1, j, j + 1, env);
    const [q0, q1, k0, k1] = around(box);
    const small = 2 ** z < Math.min(height, width);  // then its first pair's tile stands for it
    if (small && !waste) return named[classOf(box.q0, box.k0)] ?? colors.unknown;
    const found = small ? { area: classOf(box.q0, box.k0) } : counter.tiles(q0, q1, k0, k1, height, width);
    if (Number.isNaN(found.area)) return colors.unknown;
    if (!waste) {
      const tiles = Math.ceil((q1 - q0) / height) * Math.ceil((k1 - k0) / width);
      if (found.full === tiles) return colors.full;
      const live = (found.full + found.partial) / tiles;
      return live === 0 ? colors.empty : mixed(colors.empty, colors.partial, FAINTEST + (1 - FAINTEST) * live);
    }
    const area = (box.q1 - box.q0) * (box.k1 - box.k0);
    const live = counter.pairs(box.q0, box.q1, box.k0, box.k1) / area;
    if (Number.isNaN(live)) return colors.unknown;
    const run = small ? (found.area ? 1 : 0) : found.area / ((q1 - q0) * (k1 - k0));
    return blended([live, Math.max(0, run - live)], [colors.full, colors.waste], colors.empty);
  };
  return { whole, cell };
}
