// WebAssembly as a device: reads one request from stdin, calls its functions in turns, and writes what came of it.
//
//     in    4 bytes: length of the JSON | JSON {rounds, sample, calls: [{name, library, arguments}], blobs: [bytes…]} | blobs
//           an argument is the number of a blob, or {bytes, kind}: kind 1 is a result, 2 is scratch
//     out   what `weft-server` answers to RUN (server.c): status, detail, text, times, results
//
// Each process serves one request: a trap, a hang or all memory taken is the end of it alone.
import { readFileSync, writeFileSync } from "node:fs";

const OK = 0, FAULT = 1, CRASH = 2, REFUSED = 4;
const request = readFileSync(0);
const start = 4 + request.readUInt32LE(0);
const { rounds, sample, calls, blobs } = JSON.parse(request.subarray(4, start));
const ends = blobs.map(((at) => (size) => (at += size))(start));
const blob = (at) => request.subarray(ends[at] - blobs[at], ends[at]);

function finish(status, detail, text, parts = []) {
  const head = Buffer.alloc(208);
  head.writeUInt32LE(status, 0);
  head.writeUInt32LE(detail >>> 0, 4);
  head.write(String(text).slice(0, 190), 8);
  writeFileSync(1, Buffer.concat([head, ...parts]));
  process.exit(0);
}

// Functions of the C library's mathematics by their names there: expf, tanh, …
function mathematics(name) {
  const plain = name in Math || !name.endsWith("f") ? name : name.slice(0, -1);
  const found = Math[plain] ?? { fmod: (a, b) => a % b }[plain];
  if (found === undefined) finish(REFUSED, 0, "the library needs a function that JavaScript does not have: " + name);
  return found;
}

function prepare({ name, library, arguments: given }) {
  const module = new WebAssembly.Module(blob(library));
  const env = Object.fromEntries(WebAssembly.Module.imports(module).map((one) => [one.name, mathematics(one.name)]));
  const { exports } = new WebAssembly.Instance(module, { env });
  if (!(exports[name] instanceof Function)) finish(REFUSED, 0, "the library has no function " + name);
  const room = (bytes) => {
    const address = exports.weft_allocate(BigInt(Math.max(bytes, 8)));
    if (address === 0) finish(5, 0, "there is no memory for the arguments");
    return address >>> 0;
  };
  const places = given.map((one) => room(typeof one === "number" ? blobs[one] : one.bytes));
  const slots = room(8 * given.length);
  given.forEach((one, at) => {
    if (typeof one === "number") new Uint8Array(exports.memory.buffer).set(blob(one), places[at]);
    new BigInt64Array(exports.memory.buffer, slots + 8 * at, 1)[0] = BigInt(places[at]);
  });
  const call = (times) => {
    for (let i = 0; i < times; i++) {
      const code = exports[name](slots, 1n);
      if (code !== 0) finish(FAULT, code, "the kernel says that it failed");
    }
  };
  call(1);
  const results = given.flatMap((one, at) =>
    one.kind === 1 ? [Buffer.from(new Uint8Array(exports.memory.buffer, places[at], one.bytes))] : [],
  );
  return { call, results, repeats: 1, times: [] };
}

try {
  const all = calls.map(prepare);
  for (const one of all)
    for (;;) {
      const begin = process.hrtime.bigint();
      one.call(one.repeats);
      if (Number(process.hrtime.bigint() - begin) >= sample || one.repeats > 1 << 30) break;
      one.repeats *= 2;
    }
  for (let round = 0; round < rounds; round++)
    for (const one of all) {
      // In turns: what slows the machine down slows all of them.
      const wall = process.hrtime.bigint();
      const own = process.cpuUsage();
      one.call(one.repeats);
      const used = process.cpuUsage(own);
      one.times.push(BigInt(used.user + used.system) * 1000n, process.hrtime.bigint() - wall);
    }
  const samples = all.map((one) =>
    Buffer.from(new BigUint64Array([BigInt(rounds), BigInt(one.repeats), ...one.times]).buffer),
  );
  finish(OK, 0, "", [...samples, ...all.flatMap((one) => one.results)]);
} catch (error) {
  finish(error instanceof WebAssembly.CompileError || error instanceof WebAssembly.LinkError ? REFUSED : CRASH, 0, error);
}
