// Runs programs on the Verilog of the accelerator. For each run, standard input has the first word of the program, the
// count of its instructions and the limit of cycles (32 bits each), and then all of DRAM; standard output gets the
// cycles, the error bits and all of DRAM. On-chip memories keep what the run before has left.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#include "Vvdla.h"

int main(int, char **) {
    Vvdla top;
    std::vector<uint8_t> dram(size_t(WORDS) * BLOCK);
    auto tick = [&] {
        const size_t address = size_t(top.read_address) * BLOCK;
        if (top.write) std::memcpy(&dram[size_t(top.write_address) * BLOCK], &top.write_data, BLOCK);
        top.clk = 1;
        top.eval();
        std::memcpy(&top.read_data, &dram[address], BLOCK);
        top.clk = 0;
        top.eval();
    };
    top.clk = top.rst = top.start = 0;
    top.eval();
    for (uint32_t job[3]; std::fread(job, sizeof job, 1, stdin) == 1;) {
        if (std::fread(dram.data(), dram.size(), 1, stdin) != 1) return 1;
        top.program = job[0], top.count = job[1], top.limit = job[2], top.start = 1;
        top.eval();
        tick();
        top.start = 0;
        top.eval();
        while (top.running) tick();
        const uint32_t answer[2] = {top.cycles, top.errors};
        std::fwrite(answer, sizeof answer, 1, stdout);
        std::fwrite(dram.data(), dram.size(), 1, stdout);
        std::fflush(stdout);
    }
}
