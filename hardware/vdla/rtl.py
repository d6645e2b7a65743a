"""The accelerator in Amaranth: fetch, load, compute and store, each with a queue, and four counters of tokens.

    DRAM ── fetch ──┬── queue ── load ────┐  inp, wgt
      │             ├── queue ── compute ─┤  acc, uop      load ⇄ compute ⇄ store: tokens
      │             └── queue ── store ───┘
      └── port: one transfer at a time, after its latency

`model.py` is the same machine, event by event; `simulate.py` runs this one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Array, Cat, Elaboratable, Module, Mux, ResetInserter, Signal, signed
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.utils import ceil_log2

from weft.targets.vdla import isa
from weft.targets.vdla.isa import DEADLOCK, ILLEGAL, INSTRUCTION_BITS, RANGE, TIMEOUT, UNITS, Config
from weft.targets.vdla.model import PRIORITY

WIDE = 34
"""Bits of an address before it is found to be in range: no instruction reaches further."""


def fields(word: Any, table: tuple[isa.Field, ...], place: int | None = None) -> SimpleNamespace:
    """The parts of a word, as the tables of the instruction set cut it."""
    made, place = {}, sum(field.bits for field in isa.HEAD) if place is None else place
    for field in table:
        part = word[place : place + field.bits]
        made[field.name] = part.as_signed() if field.signed else part
        place += field.bits
    return SimpleNamespace(**made)


def wires(owner: Any, prefix: str = "", **shapes: Any) -> None:
    """Signals as attributes that have their names."""
    for name, shape in shapes.items():
        setattr(owner, name, Signal(shape, name=prefix + name))


def code_of(memory: str) -> int:
    """The number of a memory in a transfer."""
    return isa.MEMORIES[memory].code


class Walker(Elaboratable):
    """The words of a transfer, one after the other: the latency, the turn at the port, then an address each cycle.

    What it names in a cycle (`valid`, `entry`, `beat`, `inside`) comes from memory in the next; `then` has it delayed.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        named = {"valid": 1, "inside": 1, "entry": WIDE, "word": WIDE, "beat": range(config.block)}
        self.then = SimpleNamespace()
        wires(self, **named)
        wires(self.then, "then_", **named)
        wires(self, start=1, empty=1, request=1, grant=1, last=1, done=1, range=1)
        wires(self, sram=16, dram=32, stride=16, beats=range(config.block + 1), depth=range(8192 + 1))
        wires(self, rows=17, columns=17, left=17, right=17, top=17, bottom=17)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self.config
        row, column, line = Signal(17), Signal(17), Signal(WIDE)
        wait, tick = Signal(range(config.latency + 1)), Signal(range(config.word_cycles + 1))
        within = Signal()  # a row that is no padding
        m.d.comb += [
            within.eq((row >= self.top) & (row < self.bottom)),
            self.inside.eq(within & (column >= self.left) & (column < self.right)),
            self.range.eq(self.valid & ((self.entry >= self.depth) | (self.inside & (self.word >= config.dram)))),
        ]
        for name, signal in vars(self.then).items():
            m.d.sync += signal.eq(getattr(self, name))
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += wait.eq(0)
                with m.If(self.start):
                    with m.If(self.empty):
                        m.next = "DRAIN"
                    with m.Else():
                        m.next = "LATENCY" if config.latency else "REQUEST"
            with m.State("LATENCY"):
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == config.latency - 1):
                    m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += self.request.eq(1)
                m.d.sync += [row.eq(0), column.eq(0), self.beat.eq(0), tick.eq(0)]
                m.d.sync += [self.entry.eq(self.sram), line.eq(self.dram), self.word.eq(self.dram)]
                with m.If(self.grant):
                    m.next = "MOVE"
            with m.State("MOVE"):
                m.d.sync += tick.eq(tick + 1)
                m.d.comb += self.valid.eq(~self.inside | (tick == config.word_cycles - 1))
                with m.If(self.valid):
                    m.d.sync += [tick.eq(0), self.beat.eq(self.beat + 1), self.word.eq(self.word + self.inside)]
                    with m.If(self.beat == self.beats - 1):
                        m.d.sync += [self.beat.eq(0), self.entry.eq(self.entry + 1), column.eq(column + 1)]
                        with m.If(column == self.columns - 1):
                            m.d.sync += [column.eq(0), row.eq(row + 1)]
                            with m.If(within):
                                m.d.sync += [line.eq(line + self.stride), self.word.eq(line + self.stride)]
                            with m.If(row == self.rows - 1):
                                m.d.comb += self.last.eq(1)
                                m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
        return m

    def follow(self, m: Module, head: Any, one: Any) -> None:
        """Transfers as an instruction says: whether it is empty at its `head`, the rest when it is held in `one`."""
        rows, columns = head.pad_top + head.rows + head.pad_bottom, head.pad_left + head.columns + head.pad_right
        m.d.comb += [
            self.empty.eq((rows == 0) | (columns == 0)),
            self.sram.eq(one.sram), self.dram.eq(one.dram), self.stride.eq(one.stride),
            self.top.eq(one.pad_top), self.bottom.eq(one.pad_top + one.rows),
            self.left.eq(one.pad_left), self.right.eq(one.pad_left + one.columns),
            self.rows.eq(self.bottom + one.pad_bottom), self.columns.eq(self.right + one.pad_right),
        ]  # fmt: skip
        with m.Switch(one.memory):
            for name, memory in isa.MEMORIES.items():
                with m.Case(memory.code):
                    m.d.comb += [self.beats.eq(self.config.beats[name]), self.depth.eq(self.config.depth[name])]


class Unit:
    """What the three units have in common: a queue, the instruction at work, and the tokens before and after it."""

    def __init__(self, m: Module, config: Config, name: str) -> None:
        self.queue = m.submodules[f"{name}_queue"] = SyncFIFO(width=INSTRUCTION_BITS, depth=config.queue)
        self.walker = m.submodules[f"{name}_walker"] = Walker(config)
        self.held = Signal(INSTRUCTION_BITS, name=f"{name}_held")
        self.head, self.now = self.queue.r_data, self.held
        wires(self, f"{name}_", issue=1, done=1, push=1, waiting=1, idle=1)
        self.pops, self.pushes = [], []  # (the bit of an instruction, the counter)
        self.name = name

    def elaborate(self, m: Module, tokens: dict[tuple[str, str], Signal], full: int) -> None:
        """The steps of every instruction: issue, work, push."""
        head, now = fields(self.head, isa.HEAD, 0), fields(self.now, isa.HEAD, 0)
        for bit, of in (("prev", isa.BEFORE), ("next", isa.AFTER)):
            if self.name in of:
                other = of[self.name]
                self.pops.append((getattr(head, f"pop_{bit}"), tokens[other, self.name]))
                self.pushes.append((getattr(now, f"push_{bit}"), tokens[self.name, other]))
        may_pop = Cat(~bit | (count != 0) for bit, count in self.pops).all()
        may_push = Cat(~bit | (count != full) for bit, count in self.pushes).all()
        with m.FSM(name=f"{self.name}_state"):
            with m.State("IDLE"):
                m.d.comb += [self.issue.eq(self.queue.r_rdy & may_pop), self.waiting.eq(~self.issue)]
                m.d.comb += [self.queue.r_en.eq(self.issue), self.idle.eq(~self.queue.r_rdy)]
                m.d.sync += self.held.eq(self.head)
                with m.If(self.issue):
                    m.next = "WORK"
            with m.State("WORK"):
                with m.If(self.done):
                    m.next = "PUSH"
            with m.State("PUSH"):
                m.d.comb += [self.push.eq(may_push), self.waiting.eq(~self.push)]
                with m.If(self.push):
                    m.next = "IDLE"


class Core(Elaboratable):
    """All of the machine that a new run resets."""

    def __init__(self, config: Config) -> None:
        self.config = config
        word, address = config.block * 8, ceil_log2(config.dram)
        wires(self, program=32, count=32, stuck=1, clean=1, illegal=1, range=1)
        wires(self, read_address=address, read_data=word, write=1, write_address=address, write_data=word)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config, word = self.config, self.config.block * 8
        tokens = {fifo: Signal(range(config.tokens + 1), name="_to_".join(fifo)) for fifo in isa.FIFOS}
        self.units = {name: Unit(m, config, name) for name in UNITS}
        for unit in self.units.values():
            unit.elaborate(m, tokens, config.tokens)
        for (giver, taker), count in tokens.items():
            pushed = Cat(bit for bit, to in self.units[giver].pushes if to is count) & self.units[giver].push
            popped = Cat(bit for bit, to in self.units[taker].pops if to is count) & self.units[taker].issue
            m.d.sync += count.eq(count + pushed - popped)
        shapes = {"inp": (word, word), "wgt": (word * config.block, word), "uop": (word, word), "acc": (word * 4, word)}
        self.memories, self.writes = {}, {}
        for name, (width, part) in shapes.items():
            memory = Memory(shape=width, depth=config.depth[name], init=[])
            self.memories[name] = m.submodules[name] = memory
            self.writes[name] = memory.write_port(granularity=part)
        self._fetch(m)
        self._load(m)
        self._compute(m)
        self._store(m)
        self._port(m)
        waiting, idle = ([getattr(unit, what) for unit in self.units.values()] for what in ("waiting", "idle"))
        m.d.comb += [
            self.stuck.eq(Cat(self.fetch_waiting, *waiting).all()),
            self.clean.eq(Cat(self.fetched, *idle).all()),
        ]
        return m

    def _port(self, m: Module) -> None:
        """One transfer at a time: who has the port keeps it until its last word."""
        busy, earlier = Signal(), 0
        walkers = {"fetch": self.fetch_walker, **{name: unit.walker for name, unit in self.units.items()}}
        for walker in (walkers[name] for name in PRIORITY):
            m.d.comb += walker.grant.eq(walker.request & ~busy & ~earlier)
            earlier = earlier | walker.request
            with m.If(walker.grant):
                m.d.sync += busy.eq(1)
            with m.If(walker.last):
                m.d.sync += busy.eq(0)
            with m.If(walker.valid):
                m.d.comb += self.read_address.eq(walker.word)
            with m.If(walker.range):
                m.d.comb += self.range.eq(1)

    def _fetch(self, m: Module) -> None:
        """Instructions from DRAM into a buffer, and from there into the queues, one each cycle."""
        config, words = self.config, self.config.instruction_words
        walker = self.fetch_walker = m.submodules.fetch_walker = Walker(config)
        buffer = m.submodules.buffer = Memory(shape=INSTRUCTION_BITS, depth=config.fetch, init=[])
        write = buffer.write_port(granularity=INSTRUCTION_BITS // words)
        read = buffer.read_port(domain="comb")
        taken, chunk, place = Signal(32), Signal(range(config.fetch + 1)), Signal(range(config.fetch + 1))
        wires(self, fetched=1, fetch_waiting=1)
        rest = Signal(32)
        m.d.comb += [
            rest.eq(self.count - taken),
            chunk.eq(Mux(rest < config.fetch, rest, config.fetch)),
            walker.dram.eq(self.program + taken * words),
            walker.rows.eq(1), walker.bottom.eq(1), walker.right.eq(walker.columns), walker.columns.eq(chunk * words),
            walker.beats.eq(1), walker.depth.eq(config.fetch * words),
            write.addr.eq(walker.then.entry // words),
            write.data.eq(Cat(self.read_data for _ in range(words))),
            write.en.eq(walker.then.valid << (walker.then.entry % words)),
            read.addr.eq(place),
        ]  # fmt: skip
        legal, unit_of = self._legal(m, read.data)
        with m.FSM(name="fetch_state"):
            with m.State("IDLE"):
                m.d.comb += [self.fetched.eq(rest == 0), self.fetch_waiting.eq(self.fetched)]
                m.d.comb += walker.start.eq(~self.fetched)
                m.d.sync += place.eq(0)
                with m.If(~self.fetched):
                    m.next = "WAIT"
            with m.State("WAIT"):
                with m.If(walker.done):
                    m.next = "DISPATCH"
            with m.State("DISPATCH"):
                go = Signal()
                m.d.comb += [go.eq(~legal), self.illegal.eq(~legal), self.fetch_waiting.eq(~go)]
                for name, unit in self.units.items():
                    m.d.comb += unit.queue.w_data.eq(read.data)
                    with m.If(legal & unit_of[name]):
                        m.d.comb += [unit.queue.w_en.eq(1), go.eq(unit.queue.w_rdy)]
                with m.If(go):
                    m.d.sync += place.eq(place + 1)
                    with m.If(place == chunk - 1):
                        m.d.sync += taken.eq(taken + chunk)
                        m.next = "IDLE"

    def _legal(self, m: Module, word: Any) -> tuple[Signal, dict[str, Any]]:
        """Whether a word is an instruction (`isa.is_legal`), and which unit runs it."""
        head, moves = fields(word, isa.HEAD, 0), fields(word, isa.TRANSFER)
        legal, unit_of = Signal(), {name: Signal(name=f"for_{name}") for name in UNITS}
        with m.Switch(head.opcode):
            with m.Case(isa.OPCODES["load"]):
                for memory in isa.MEMORIES.values():
                    with m.If(moves.memory == memory.code):
                        m.d.comb += unit_of[memory.unit].eq(1)
            with m.Case(isa.OPCODES["store"]):
                stores = [moves.memory == memory.code for memory in isa.MEMORIES.values() if memory.stores]
                m.d.comb += unit_of["store"].eq(Cat(stores).any())
            with m.Case(isa.OPCODES["gemm"], isa.OPCODES["alu"]):
                m.d.comb += unit_of["compute"].eq(1)
        nobody_before = unit_of["load"] & (head.pop_prev | head.push_prev)
        nobody_after = unit_of["store"] & (head.pop_next | head.push_next)
        m.d.comb += legal.eq(Cat(unit_of.values()).any() & ~nobody_before & ~nobody_after)
        return legal, unit_of

    def _load(self, m: Module) -> None:
        unit = self.units["load"]
        walker, now = unit.walker, fields(unit.now, isa.TRANSFER)
        walker.follow(m, fields(unit.head, isa.TRANSFER), now)
        m.d.comb += [walker.start.eq(unit.issue), unit.done.eq(walker.done)]
        for name in ("inp", "wgt"):
            self._fill(m, name, walker, now.memory == code_of(name))

    def _fill(self, m: Module, name: str, walker: Walker, here: Any) -> None:
        """What came from DRAM, or zeros of padding, into the part of an entry that its beat is."""
        port, data = self.writes[name], Mux(walker.then.inside, self.read_data, 0)
        with m.If(walker.then.valid & here):
            m.d.comb += [port.addr.eq(walker.then.entry), port.en.eq(1 << walker.then.beat)]
            m.d.comb += port.data.eq(Cat(data for _ in range(len(port.en))))

    def _store(self, m: Module) -> None:
        unit = self.units["store"]
        walker, now = unit.walker, fields(unit.now, isa.TRANSFER)
        walker.follow(m, fields(unit.head, isa.TRANSFER), now)
        read = self.memories["acc"].read_port()
        lanes = [read.data.word_select(lane, 32).as_signed() for lane in range(self.config.block)]
        m.d.comb += [
            walker.start.eq(unit.issue), unit.done.eq(walker.done), read.addr.eq(walker.entry),
            self.write.eq(walker.then.valid & walker.then.inside), self.write_address.eq(walker.then.word),
            self.write_data.eq(read.data.word_select(walker.then.beat[:2], self.config.block * 8)),
        ]  # fmt: skip
        with m.If(now.memory == code_of("acc8")):
            m.d.comb += self.write_data.eq(Cat(saturate(lane) for lane in lanes))

    def _compute(self, m: Module) -> None:
        config, unit = self.config, self.units["compute"]
        walker, now = unit.walker, fields(unit.now, isa.TRANSFER)
        walker.follow(m, fields(unit.head, isa.TRANSFER), now)
        loads = fields(unit.head, isa.HEAD, 0).opcode == isa.OPCODES["load"]
        for name in ("uop", "acc"):
            self._fill(m, name, walker, now.memory == code_of(name))
        write = self.writes["acc"]
        with m.If(walker.then.valid & (now.memory == code_of("acc8"))):
            lanes = [self.read_data.word_select(lane, 8).as_signed() for lane in range(config.block)]
            wide = Cat(Cat(lane, lane[7].replicate(24)) for lane in lanes)
            m.d.comb += [write.addr.eq(walker.then.entry), write.en.eq(0b1111)]
            m.d.comb += write.data.eq(Mux(walker.then.inside, wide, 0))
        valid, uop, offsets, done = self._loops(m, unit.issue & ~loads)
        m.d.comb += [walker.start.eq(unit.issue & loads), unit.done.eq(walker.done | done)]
        self._steps(m, fields(unit.now, isa.FORMATS["gemm"]), fields(unit.now, isa.FORMATS["alu"]), valid, uop, offsets)

    def _loops(self, m: Module, start: Any) -> tuple[Signal, Signal, dict[str, Signal], Signal]:
        """The steps of a gemm or an alu: a micro-op each cycle, and what the two loops add to its indices."""
        unit = self.units["compute"]
        head, now = fields(unit.head, isa.LOOPS), fields(unit.now, isa.FORMATS["gemm"])
        valid, done, uop, outer, inner = Signal(), Signal(), Signal(14), Signal(14), Signal(14)
        offsets = {field.name: Signal(WIDE, name=f"{field.name}_offset") for field in isa.UOP}
        lines = {field.name: Signal(WIDE, name=f"{field.name}_line") for field in isa.UOP}
        with m.FSM(name="loops"):
            with m.State("IDLE"):
                m.d.sync += [uop.eq(head.uop_begin), outer.eq(0), inner.eq(0)]
                m.d.sync += [signal.eq(0) for signal in (*offsets.values(), *lines.values())]
                with m.If(start):
                    none = (head.uop_end <= head.uop_begin) | (head.outer == 0) | (head.inner == 0)
                    with m.If(none):
                        m.next = "DRAIN"
                    with m.Else():
                        m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += valid.eq(1)
                m.d.sync += uop.eq(uop + 1)
                with m.If(uop == now.uop_end - 1):
                    m.d.sync += [uop.eq(now.uop_begin), inner.eq(inner + 1)]
                    m.d.sync += [offsets[name].eq(offsets[name] + getattr(now, f"{name}_inner")) for name in offsets]
                    with m.If(inner == now.inner - 1):
                        m.d.sync += [inner.eq(0), outer.eq(outer + 1)]
                        for name in offsets:
                            further = lines[name] + getattr(now, f"{name}_outer")
                            m.d.sync += [lines[name].eq(further), offsets[name].eq(further)]
                        with m.If(outer == now.outer - 1):
                            m.next = "DRAIN"
            with m.State("DRAIN"):
                m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += done.eq(1)
                m.next = "IDLE"
        return valid, uop, offsets, done

    def _steps(self, m: Module, gemm: Any, alu: Any, valid: Signal, uop: Signal, offsets: dict[str, Signal]) -> None:
        """Three cycles of each step: read the micro-op; read its operands; compute and write."""
        config, per_word = self.config, self.config.block // 4
        is_alu = fields(self.units["compute"].now, isa.HEAD, 0).opcode == isa.OPCODES["alu"]
        uops = self.memories["uop"].read_port()
        second, lane, index = Signal(), Signal(range(per_word)), {}
        m.d.comb += uops.addr.eq(uop // per_word)
        m.d.sync += [second.eq(valid), lane.eq(uop % per_word)]
        parts = fields(uops.data.word_select(lane, 32), isa.UOP, 0)
        for name, offset in offsets.items():
            delayed, index[name] = Signal(WIDE, name=f"{name}_delayed"), Signal(WIDE, name=f"{name}_index")
            m.d.sync += delayed.eq(offset)
            m.d.comb += index[name].eq(getattr(parts, name) + delayed)
        write = self.writes["acc"]
        inp, wgt = self.memories["inp"].read_port(), self.memories["wgt"].read_port()
        old, other = (self.memories["acc"].read_port(transparent_for=(write,)) for _ in range(2))
        third, dst = Signal(), Signal(range(config.acc))
        m.d.comb += [inp.addr.eq(index["src"]), wgt.addr.eq(index["wgt"]), old.addr.eq(index["dst"])]
        m.d.comb += other.addr.eq(index["src"])
        m.d.sync += [third.eq(second), dst.eq(index["dst"])]
        beyond = {name: index[name] >= getattr(config, of) for name, of in (("dst", "acc"), ("wgt", "wgt"))}
        gemm_beyond = beyond["wgt"] | (index["src"] >= config.inp)
        alu_beyond = ~alu.immediate & (index["src"] >= config.acc)
        with m.If((valid & (uop >= config.uop)) | (second & (beyond["dst"] | Mux(is_alu, alu_beyond, gemm_beyond)))):
            m.d.comb += self.range.eq(1)
        inputs = [inp.data.word_select(i, 8).as_signed() for i in range(config.block)]
        results = []
        for lane in range(config.block):
            row = wgt.data.word_select(lane, config.block * 8)
            product = sum(x * row.word_select(i, 8).as_signed() for i, x in enumerate(inputs))
            x, y, made = (Signal(signed(32), name=f"{name}_{lane}") for name in ("x", "y", "made"))
            m.d.comb += [
                x.eq(old.data.word_select(lane, 32)),
                y.eq(Mux(alu.immediate, alu.value, other.data.word_select(lane, 32).as_signed())),
                made.eq(Mux(is_alu, operate(m, alu.operation, x, y), Mux(gemm.overwrite, 0, x) + product)),
            ]
            results.append(Mux(is_alu & ~alu.immediate, second_stage(m, made, alu.value), made)[:32])
        with m.If(third):
            m.d.comb += [write.addr.eq(dst), write.en.eq(0b1111), write.data.eq(Cat(results))]


def saturate(lane: Any) -> Any:
    """int32 to int8."""
    return Mux(lane > 127, 127, Mux(lane < -128, -128, lane))[:8]


def operate(m: Module, operation: Any, x: Signal, y: Signal) -> Any:
    """The vector ALU on one lane, as `machine.operate`."""
    low = Signal(signed(32), name=f"low_{x.name}")
    m.d.comb += low.eq(Mux(x > ~y, x, ~y))
    answers = {
        "add": x + y, "max": Mux(x > y, x, y), "min": Mux(x < y, x, y), "mul": x * y,
        "shr": Mux(y >= 0, x >> y[:5], x << (-y)[:5]), "clip": Mux(low < y, low, y),
        "round": (x + half(x, y[:5])) >> y[:5], "mulh": (x * y) >> 16,
    }  # fmt: skip
    return Array(answers[name][:32] for name in isa.OPERATIONS)[operation]


def half(x: Any, by: Any) -> Any:
    """What is added before bits fall off, for rounding to the nearest, halves to even."""
    return Mux(by == 0, 0, (1 << by >> 1) - 1 + (x >> by)[0])


def second_stage(m: Module, x: Signal, value: Any) -> Any:
    """What follows an operation with an operand in acc, as `machine.second_stage`."""
    by, bits = value[:5], value.as_unsigned()
    shifted = Signal(signed(32), name=f"shifted_{x.name}")
    m.d.comb += shifted.eq((x + Mux((bits & isa.ROUNDS).any(), half(x, by), 0)) >> by)
    return Mux((bits & isa.POSITIVE).any() & (shifted < 0), 0, shifted)


class Accelerator(Elaboratable):
    """The core, and how a run begins and ends. A word of DRAM is read in the cycle after its address."""

    def __init__(self, config: Config) -> None:
        self.core = Core(config)
        wires(self, start=1, limit=32, running=1, cycles=32, errors=4)
        core = self.core
        self.ports = [
            self.start, core.program, core.count, self.limit, core.read_data,
            self.running, self.cycles, self.errors, core.read_address, core.write, core.write_address, core.write_data,
        ]  # fmt: skip

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        core = self.core
        m.submodules.core = ResetInserter(~self.running)(core)
        with m.If(self.start):
            m.d.sync += [self.running.eq(1), self.cycles.eq(0), self.errors.eq(0)]
        with m.Elif(self.running):
            seen = Mux(core.illegal, ILLEGAL, 0) | Mux(core.range, RANGE, 0)
            with m.If(self.cycles == self.limit):
                m.d.sync += [self.running.eq(0), self.errors.eq(self.errors | TIMEOUT)]
            with m.Elif(core.stuck):
                m.d.sync += [self.running.eq(0), self.errors.eq(self.errors | Mux(core.clean, 0, DEADLOCK))]
            with m.Else():
                m.d.sync += [self.cycles.eq(self.cycles + 1), self.errors.eq(self.errors | seen)]
        return m
