/* A plugin for QEMU's user mode: counts instructions, and loads and stores that miss a cache of 32 KB (8 ways, lines of
   64 bytes, the least recently used one goes). At a system call with
   the arguments MARK and MARK the counters are written to the file that the
   environment names as DEVICE_COUNTERS, which the emulated device server reads. The declarations are those of version 1
   of the interface (QEMU 6.0 and later), whose header few systems install. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*on_block)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*on_call)(qemu_plugin_id_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t);
typedef void (*on_access)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, on_block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, on_access, int, int, void *);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, on_call);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { MARK = 0x77656674, SETS = 64, WAYS = 8, LINE_BITS = 6 };

static uint64_t instructions, misses, *shown;
static uint64_t lines[SETS][WAYS]; /* of each set, the last used first; 0: nothing */

static void access_made(unsigned processor, qemu_plugin_meminfo_t how, uint64_t address, void *data) {
    (void)processor, (void)how, (void)data;
    uint64_t line = (address >> LINE_BITS) + 1, *set = lines[line % SETS];
    int at = 0;
    while (at < WAYS - 1 && set[at] != line) at++;
    if (set[at] != line) misses++;
    memmove(set + 1, set, (size_t)at * sizeof *set);
    set[0] = line;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &instructions, count);
    for (size_t i = 0; i < count; i++)
        qemu_plugin_register_vcpu_mem_cb(qemu_plugin_tb_get_insn(block, i), access_made, 0, 3, NULL);
}

static void called(qemu_plugin_id_t id, unsigned processor, int64_t number, uint64_t a, uint64_t b, uint64_t c,
                   uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)processor, (void)number, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if ((uint32_t)a != MARK || (uint32_t)b != MARK) return;
    memset(lines, 0, sizeof lines); /* an empty cache: what is counted does not depend on what ran before */
    shown[0] = instructions, shown[1] = misses;
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void *facts, int count,
                                                               char **words) {
    (void)facts, (void)count, (void)words;
    const char *path = getenv("DEVICE_COUNTERS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (seen == MAP_FAILED) return 1;
    shown = seen;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
