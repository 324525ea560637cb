// The predicate of one mask, or of two, in a fragment shader: every pixel asks the formula itself.

import { reached } from "./formula.js";

const LIBRARY = `
int floor_div(int a, int b) { return a >= 0 ? a / b : ~(~a / b); }
int floor_mod(int a, int b) { return a >= 0 ? a % b : b - 1 - ~a % b; }
`;
const WIDEST = 2 ** 31 - 2;

/** Whether nothing in the shader of a set leaves 32 bits, at these magnitudes. */
export function fits(set, values) {
  return set.shader !== null && reached(set.shader.bound, values) <= WIDEST;
}

/** Draws pairs that are at least a pixel wide. */
export class PairShader {
  /** Throws where the browser has no WebGL 2; `lost` is told when it is taken away. */
  constructor(canvas, lost) {
    this.gl = canvas.getContext("webgl2", { antialias: false, alpha: false, preserveDrawingBuffer: true });
    if (!this.gl) throw new Error("no WebGL 2");
    canvas.addEventListener("webglcontextlost", lost);
    this.programs = new Map();
    this.textures = new Map();
  }

  /**
   * sets: one or two of { set, env, values }; two: their difference is drawn.
   * view: { origin: [key, query], shift: [x, y], size, n_q, n_kv } in device pixels, where `shift`
   * pixels of pair `origin` lie left of and above the canvas. colors: lists of three shares.
   */
  draw(sets, view, colors) {
    const { gl } = this;
    const program = this.#program(sets);
    gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
    gl.useProgram(program);
    const at = (name) => gl.getUniformLocation(program, name);
    gl.uniform2i(at("origin"), ...view.origin);
    gl.uniform2f(at("shift"), ...view.shift);
    gl.uniform1f(at("size"), view.size);
    gl.uniform1f(at("bottom"), gl.drawingBufferHeight);
    gl.uniform1i(at("n_q"), view.n_q);
    gl.uniform1i(at("n_kv"), view.n_kv);
    for (const [name, color] of Object.entries(colors)) gl.uniform3f(at(name), ...color);
    let unit = 0;
    sets.forEach(({ set, env }, which) => {
      set.shader.params.forEach((name, i) => gl.uniform1i(at(`v${which}_p${i}`), env.params[name]));
      set.shader.arrays.forEach((name, i) => {
        const array = env.arrays[name];
        this.#bind(unit, array.values, array.shape);
        gl.uniform1i(at(`v${which}_a${i}`), unit++);
        gl.uniform2i(at(`v${which}_s${i}`), array.rows, array.columns);
      });
      set.shader.lists.forEach((ranges, i) => {
        this.#bind(unit, this.#ends(ranges));
        gl.uniform1i(at(`v${which}_l${i}`), unit++);
        gl.uniform1i(at(`v${which}_n${i}`), 2 * ranges.length);
      });
    });
    gl.drawArrays(gl.TRIANGLES, 0, 3);
  }

  #ends(ranges) {
    this.lists ??= new Map();
    if (!this.lists.has(ranges)) this.lists.set(ranges, Int32Array.from(ranges.flatMap(([low, high]) => [low, high + 1])));
    return this.lists.get(ranges);
  }

  #bind(unit, values) {
    const { gl } = this;
    gl.activeTexture(gl.TEXTURE0 + unit);
    let texture = this.textures.get(values);
    if (texture) { gl.bindTexture(gl.TEXTURE_2D, texture); return; }
    const width = Math.min(gl.getParameter(gl.MAX_TEXTURE_SIZE), 4096);
    const height = Math.max(1, Math.ceil(values.length / width));
    const padded = new Int32Array(width * height);
    padded.set(values);
    texture = gl.createTexture();
    gl.bindTexture(gl.TEXTURE_2D, texture);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32I, width, height, 0, gl.RED_INTEGER, gl.INT, padded);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    this.textures.set(values, texture);
  }

  #program(sets) {
    const text = fragment(sets.map(({ set }) => set.shader));
    if (this.programs.has(text)) return this.programs.get(text);
    const { gl } = this, program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, text]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    this.programs.set(text, program);
    return program;
  }
}

const VERTEX = `#version 300 es
void main() {  // one triangle that covers everything
  gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}`;

function fragment(shaders) {
  const two = shaders.length > 1;
  return `#version 300 es
precision highp float;
precision highp int;
precision highp isampler2D;
uniform ivec2 origin;
uniform vec2 shift;
uniform float size, bottom;
uniform int n_q, n_kv;
uniform vec3 live, dead, outside${two ? ", first, second" : ""};
out vec4 color;
${LIBRARY}
int element(isampler2D data, int at) {
  int width = textureSize(data, 0).x;
  return texelFetch(data, ivec2(at % width, at / width), 0).r;
}
bool in_ranges(isampler2D ends, int count, int x) {  // whether an odd number of ends is at most x
  int low = 0, high = count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (element(ends, middle) <= x) low = middle + 1; else high = middle;
  }
  return low % 2 == 1;
}
${shaders.map(predicate).join("")}
void main() {
  vec2 place = vec2(gl_FragCoord.x, bottom - gl_FragCoord.y) + shift;
  ivec2 pair = origin + ivec2(floor(place / size));
  int k = pair.x, q = pair.y;
  vec3 found = outside;
  if (q >= 0 && k >= 0 && q < n_q && k < n_kv) {
    bool a = sees0(q, k);
    found = a ? live : dead;
    ${two ? "bool b = sees1(q, k); if (a != b) found = a ? first : second;" : ""}
  }
  color = vec4(found, 1.0);
}`;
}

/** The compiler's text in a function, between definitions of the names that it uses. */
function predicate(shader, which) {
  const names = [], lines = [], own = `v${which}_`;
  shader.params.forEach((_, i) => {
    names.push([`p${i}`, `${own}p${i}`]);
    lines.push(`uniform int ${own}p${i};`);
  });
  shader.arrays.forEach((_, i) => {
    names.push([`a${i}`, `${own}array${i}`]);
    lines.push(
      `uniform isampler2D ${own}a${i};`, `uniform ivec2 ${own}s${i};`,
      `int ${own}array${i}(int i, int j) { return element(${own}a${i}, clamp(i, 0, ${own}s${i}.x - 1) * ${own}s${i}.y + clamp(j, 0, ${own}s${i}.y - 1)); }`,
      `int ${own}array${i}(int j) { return ${own}array${i}(0, j); }`,
    );
  });
  shader.lists.forEach((_, i) => {
    names.push([`in${i}`, `${own}list${i}`]);
    lines.push(
      `uniform isampler2D ${own}l${i};`, `uniform int ${own}n${i};`,
      `bool ${own}list${i}(int x) { return in_ranges(${own}l${i}, ${own}n${i}, x); }`,
    );
  });
  return [
    ...lines, ...names.map(([name, meant]) => `#define ${name} ${meant}`),
    `bool sees${which}(int q, int k) { return ${shader.text}; }`,
    ...names.map(([name]) => `#undef ${name}`), "",
  ].join("\n");
}
