/* weft-server: runs kernels that somebody who has the key uploads, and says what they computed and how long they took.

   One static program without a file beside it but the key. A connection is served by a child of its own; each RUN by a
   grandchild with limits of time and memory, which may crash or hang. One RUN at a time: others wait for their turn.

     hello      client: "WEFTDEV2", 32 random bytes                         nothing else is read before both sides have
                server: 32 random bytes, HMAC(key, "server", both)          shown that they have the key: a client that
                client: HMAC(key, "client", both)                           cannot is closed without a word
     message    8 bytes: length, type | MAC of them | body | MAC of it      MACs count messages and know their direction
     INFO       -> text, a fact a line
     PUT bytes  -> their SHA-256, by which RUN names them
     RUN        -> status, times, results (see struct run)

   A library is a shared object for this machine that needs no other: it is placed here, in the grandchild, and finds
   the functions of `symbols` below. All numbers are little-endian. Messages are authenticated, not encrypted.

   weft-server -k KEYFILE [-a ADDRESS] [-p PORT] [-m MEGABYTES] [-l]        -l: leaves when its parent does */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HASH = 32, MOST_KERNELS = 4, MOST_ARGUMENTS = 64, MOST_ROUNDS = 64, MOST_BLOBS = 4096, MOST_CHILDREN = 16 };
enum { HANDSHAKE_SECONDS = 10, IDLE_SECONDS = 900 };
enum { INFO = 1, PUT = 2, RUN = 3, GOOD = 0x80, BAD = 0x81 };
enum { OK, FAULT, CRASH, HANG, REFUSED, MEMORY };

#if UINTPTR_MAX > 0xffffffffu
typedef Elf64_Ehdr Header; typedef Elf64_Phdr Segment; typedef Elf64_Dyn Dynamic; typedef Elf64_Sym Symbol;
#define CLASS ELFCLASS64
#define RELOCATION_SYMBOL ELF64_R_SYM
#define RELOCATION_TYPE ELF64_R_TYPE
#else
typedef Elf32_Ehdr Header; typedef Elf32_Phdr Segment; typedef Elf32_Dyn Dynamic; typedef Elf32_Sym Symbol;
#define CLASS ELFCLASS32
#define RELOCATION_SYMBOL ELF32_R_SYM
#define RELOCATION_TYPE ELF32_R_TYPE
#endif

#if defined(__aarch64__)
typedef Elf64_Rela Relocation;
enum { MACHINE = EM_AARCH64, RELATIVE = 1027, SLOT = 1026, GLOBAL = 1025, WORD = 257, HAS_ADDEND = 1 };
static const char architecture[] = "aarch64";
#elif defined(__x86_64__)
typedef Elf64_Rela Relocation;
enum { MACHINE = EM_X86_64, RELATIVE = 8, SLOT = 7, GLOBAL = 6, WORD = 1, HAS_ADDEND = 1 };
static const char architecture[] = "x86_64";
#elif defined(__riscv) && __riscv_xlen == 64
typedef Elf64_Rela Relocation;
enum { MACHINE = EM_RISCV, RELATIVE = 3, SLOT = 5, GLOBAL = 2, WORD = 2, HAS_ADDEND = 1 };
static const char architecture[] = "riscv64";
#elif defined(__arm__)
typedef Elf32_Rel Relocation;
enum { MACHINE = EM_ARM, RELATIVE = 23, SLOT = 22, GLOBAL = 21, WORD = 2, HAS_ADDEND = 0 };
static const char architecture[] = "armv7";
#else
#error "no relocations are known for this architecture"
#endif

typedef unsigned char byte;

/* ------------------------------------------------------------------------------------------ SHA-256 (FIPS 180-4) */

struct sha { uint32_t state[8]; uint64_t length; byte block[64]; };

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void sha_begin(struct sha *s) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, first, sizeof first);
    s->length = 0;
}

static void sha_block(uint32_t *state, const byte *data) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)data[4 * i] << 24 | data[4 * i + 1] << 16 | data[4 * i + 2] << 8 | data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + w[i];
        uint32_t two = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

static void sha_add(struct sha *s, const void *data, size_t size) {
    const byte *from = data;
    while (size) {
        size_t at = s->length % 64, part = 64 - at < size ? 64 - at : size;
        if (part == 64) sha_block(s->state, from);
        else {
            memcpy(s->block + at, from, part);
            if (at + part == 64) sha_block(s->state, s->block);
        }
        s->length += part, from += part, size -= part;
    }
}

static void sha_end(struct sha *s, byte *out) {
    uint64_t bits = 8 * s->length;
    byte tail[72] = {0x80}, count[8];
    size_t zeros = (119 - s->length % 64) % 64;
    for (int i = 0; i < 8; i++) count[i] = (byte)(bits >> (56 - 8 * i));
    sha_add(s, tail, 1 + zeros);
    sha_add(s, count, 8);
    for (int i = 0; i < HASH; i++) out[i] = (byte)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}

static void sha_of(const void *data, size_t size, byte *out) {
    struct sha s;
    sha_begin(&s), sha_add(&s, data, size), sha_end(&s, out);
}

/* HMAC (RFC 2104) of two pieces under a key of 32 bytes. */
static void mac_of(const byte *key, const void *a, size_t size_a, const void *b, size_t size_b, byte *out) {
    struct sha s;
    byte pad[64];
    for (int i = 0; i < 64; i++) pad[i] = (i < HASH ? key[i] : 0) ^ 0x36;
    sha_begin(&s), sha_add(&s, pad, 64), sha_add(&s, a, size_a), sha_add(&s, b, size_b), sha_end(&s, out);
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36 ^ 0x5c;
    sha_begin(&s), sha_add(&s, pad, 64), sha_add(&s, out, HASH), sha_end(&s, out);
}

static int same(const byte *a, const byte *b) { /* takes the same time wherever they differ */
    volatile byte apart = 0;
    for (int i = 0; i < HASH; i++) apart |= a[i] ^ b[i];
    return !apart;
}

/* ------------------------------------------------------------------------------------------ the connection */

struct side { byte key[HASH]; uint64_t count; };

struct blob { byte hash[HASH]; size_t size; byte *data; };

static struct {
    int socket, turn;
    struct side in, out;
    struct blob blobs[MOST_BLOBS];
    size_t blob_count, blob_bytes;
} here;

/* Whom the children serve, in memory that they share: one that has shown no key yet makes room for the next who comes. */
static struct { pid_t process; uint32_t knows; } *served, *mine;

static size_t most_bytes = (size_t)256 << 20;
static volatile uint64_t *counters; /* what the emulator's plugin counts; none on a real machine */

static void say(const char *what) { fprintf(stderr, "weft-server: %s\n", what); }

static void leave(const char *why) {
    if (why) say(why);
    _exit(0);
}

static void put_number(byte *to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (byte)(value >> (8 * i));
}

static uint64_t number(const byte *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static void receive(void *to, size_t size) {
    for (byte *at = to; size;) {
        ssize_t got = recv(here.socket, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) leave(NULL); /* it has hung up, or says nothing any more */
        at += got, size -= (size_t)got;
    }
}

static void transmit(const void *from, size_t size) {
    for (const byte *at = from; size;) {
        ssize_t sent = send(here.socket, at, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) leave(NULL);
        at += sent, size -= (size_t)sent;
    }
}

static void randomize(byte *to, size_t size) {
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    for (size_t done = 0; done < size;) {
        ssize_t got = file < 0 ? -1 : read(file, to + done, size - done);
        if (got <= 0) leave("there are no random numbers here");
        done += (size_t)got;
    }
    close(file);
}

static void greet(byte *key) {
    byte hello[8 + HASH], both[2 * HASH], proof[HASH], given[HASH];
    receive(hello, sizeof hello);
    if (memcmp(hello, "WEFTDEV2", 8)) leave("refused: a connection that does not speak our language");
    memcpy(both, hello + 8, HASH);
    randomize(both + HASH, HASH);
    mac_of(key, "server", 6, both, sizeof both, proof);
    transmit(both + HASH, HASH);
    transmit(proof, HASH);
    receive(given, HASH);
    mac_of(key, "client", 6, both, sizeof both, proof);
    if (!same(given, proof)) leave("refused: a client without the key");
    mac_of(key, "to server", 9, both, sizeof both, here.in.key);
    mac_of(key, "to client", 9, both, sizeof both, here.out.key);
    memset(key, 0, HASH); /* whatever runs here later finds no key */
    mine->knows = 1;
}

static void message_mac(struct side *side, byte part, const void *data, size_t size, byte *out) {
    byte prefix[9];
    put_number(prefix, side->count, 8);
    prefix[8] = part;
    mac_of(side->key, prefix, 9, data, size, out);
}

/* The body of the next message; its length is believed only when its MAC is right. */
static byte *next_message(uint32_t *type, size_t *size) {
    byte header[8], given[HASH], wanted[HASH];
    receive(header, 8);
    receive(given, HASH);
    message_mac(&here.in, 'h', header, 8, wanted);
    if (!same(given, wanted)) leave("refused: a message that was changed on its way");
    *size = (size_t)number(header, 4);
    *type = (uint32_t)number(header + 4, 4);
    if (*size > most_bytes) leave("refused: a message that is larger than all memory we may use");
    byte *body = malloc(*size ? *size : 1);
    if (!body) leave("there is no memory for a message");
    receive(body, *size);
    receive(given, HASH);
    message_mac(&here.in, 'b', body, *size, wanted);
    if (!same(given, wanted)) leave("refused: a message that was changed on its way");
    here.in.count++;
    return body;
}

static void answer(uint32_t type, const void *body, size_t size) {
    byte header[8], mac[HASH];
    put_number(header, size, 4);
    put_number(header + 4, type, 4);
    message_mac(&here.out, 'h', header, 8, mac);
    transmit(header, 8);
    transmit(mac, HASH);
    transmit(body, size);
    message_mac(&here.out, 'b', body, size, mac);
    transmit(mac, HASH);
    here.out.count++;
}

static void complain(const char *why) { answer(BAD, why, strlen(why)); }

/* ------------------------------------------------------------------------------------------ what libraries may call */

typedef void (*Body)(int64_t begin, int64_t end, void *environment);

static void weft_parallel_for(Body body, void *environment, int64_t count, int64_t threads) {
    (void)threads; /* one core is measured */
    if (count > 0) body(0, count, environment);
}

static void *weft_allocate(int64_t bytes) {
    void *made = NULL;
    return posix_memalign(&made, 128, bytes > 0 ? (size_t)bytes : 1) ? NULL : made;
}

static void weft_release(void *pointer) { free(pointer); }

static void weft_ahead(int64_t place, int64_t bytes, int64_t most) { (void)place, (void)bytes, (void)most; /* nobody waits */ }

#define F1(X) X(exp) X(exp2) X(expm1) X(log) X(log2) X(log10) X(log1p) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) \
    X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(erf) X(erfc) X(tgamma) X(lgamma) X(sqrt) X(cbrt) X(floor) \
    X(ceil) X(trunc) X(round) X(rint) X(nearbyint) X(fabs) X(pow) X(fmod) X(atan2) X(hypot) X(fma) X(fmin) X(fmax) \
    X(ldexp) X(frexp) X(remainder) X(copysign)
#define PAIR(x) {#x, (void *)(uintptr_t)x}, {#x "f", (void *)(uintptr_t)x##f},
#define ONE(x) {#x, (void *)(uintptr_t)x},
#if defined(__arm__)
#define HELPERS(X) X(__aeabi_ldivmod) X(__aeabi_uldivmod) X(__aeabi_idiv) X(__aeabi_uidiv) X(__aeabi_idivmod) \
    X(__aeabi_uidivmod) X(__aeabi_l2f) X(__aeabi_l2d) X(__aeabi_ul2f) X(__aeabi_f2lz) X(__aeabi_d2lz) X(__aeabi_llsl) \
    X(__aeabi_llsr) X(__aeabi_lasr) X(__aeabi_memcpy) X(__aeabi_memcpy4) X(__aeabi_memcpy8) X(__aeabi_memset) \
    X(__aeabi_memset4) X(__aeabi_memset8) X(__aeabi_memclr) X(__aeabi_memclr4) X(__aeabi_memclr8) X(__aeabi_memmove) \
    X(__aeabi_memmove4) X(__aeabi_memmove8) X(__gnu_f2h_ieee) X(__gnu_h2f_ieee)
#elif defined(__riscv)
#define HELPERS(X) X(__extendhfsf2) X(__truncsfhf2) X(__truncdfhf2)
#else
#define HELPERS(X)
#endif
#define DECLARE(x) extern void x(void);
HELPERS(DECLARE)

static const struct { const char *name; void *address; } symbols[] = {
    F1(PAIR) HELPERS(ONE) ONE(memcpy) ONE(memset) ONE(memmove) ONE(memcmp) ONE(malloc) ONE(free) ONE(abort)
    ONE(weft_parallel_for) ONE(weft_allocate) ONE(weft_release) ONE(weft_ahead)};

/* ------------------------------------------------------------------------------------------ libraries */

static char why[200]; /* what is wrong with a library */

static void *refuse(const char *reason, const char *name) {
    snprintf(why, sizeof why, "%s%.100s", reason, name);
    return NULL;
}

struct image { byte *base; size_t size; const Symbol *symbols; const char *names; size_t names_size, count; };

static void *find(const struct image *image, const char *name) {
    for (size_t i = 1; i < image->count; i++) {
        const Symbol *s = image->symbols + i;
        if (s->st_shndx != SHN_UNDEF && s->st_name < image->names_size && !strcmp(image->names + s->st_name, name))
            return s->st_value < image->size ? image->base + s->st_value : NULL;
    }
    return NULL;
}

static void *resolve(const struct image *image, size_t at) {
    if (at >= image->count || image->symbols[at].st_name >= image->names_size)
        return refuse("the library is damaged: a relocation names no symbol", "");
    const char *name = image->names + image->symbols[at].st_name;
    void *own = find(image, name);
    for (size_t i = 0; !own && i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(symbols[i].name, name)) own = symbols[i].address;
    if (own || ELF32_ST_BIND(image->symbols[at].st_info) != STB_WEAK)
        return own ? own : refuse("the library needs a function that this server does not have: ", name);
    return NULL;
}

static int relocate(const struct image *image, size_t from, size_t bytes) {
    if (from > image->size || bytes > image->size - from) return !!refuse("the library is damaged: relocations", "");
    const Relocation *all = (const Relocation *)(image->base + from);
    for (size_t i = 0; i < bytes / sizeof *all; i++) {
        uint32_t type = RELOCATION_TYPE(all[i].r_info);
        if (all[i].r_offset > image->size - sizeof(uintptr_t)) return !!refuse("the library is damaged: offsets", "");
        uintptr_t *place = (uintptr_t *)(image->base + all[i].r_offset);
#if defined(__arm__)
        uintptr_t addend = type == SLOT || type == GLOBAL ? 0 : *place;
#else
        uintptr_t addend = (uintptr_t)all[i].r_addend;
#endif
        if (type == RELATIVE) *place = (uintptr_t)image->base + addend;
        else if (type == SLOT || type == GLOBAL || type == WORD) {
            why[0] = 0;
            uintptr_t found = (uintptr_t)resolve(image, RELOCATION_SYMBOL(all[i].r_info));
            if (why[0]) return 0;
            *place = found + addend;
        } else if (type) {
            char text[12];
            snprintf(text, sizeof text, "%u", type);
            return !!refuse("the library has a relocation that this server does not know: ", text);
        }
    }
    return 1;
}

/* Places a shared object in memory; the address of one of its functions, or NULL and the reason in `why`. */
static void *place(const byte *file, size_t size, const char *wanted) {
    const Header *header = (const Header *)file;
    if (size < sizeof *header || memcmp(file, ELFMAG, SELFMAG) || file[EI_CLASS] != CLASS ||
        header->e_type != ET_DYN || header->e_machine != MACHINE)
        return refuse("this is no shared library for ", architecture);
    if (header->e_phentsize != sizeof(Segment) || header->e_phoff > size ||
        header->e_phnum > (size - header->e_phoff) / sizeof(Segment))
        return refuse("the library is damaged: its table of segments", "");
    const Segment *segments = (const Segment *)(file + header->e_phoff), *dynamic = NULL;
    struct image image = {0};
    for (int i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type == PT_TLS) return refuse("the library has variables of threads", "");
        if (segments[i].p_type == PT_DYNAMIC) dynamic = segments + i;
        if (segments[i].p_type != PT_LOAD) continue;
        if (segments[i].p_offset > size || segments[i].p_filesz > size - segments[i].p_offset ||
            segments[i].p_filesz > segments[i].p_memsz || segments[i].p_vaddr > most_bytes ||
            segments[i].p_memsz > most_bytes)
            return refuse("the library is damaged: a segment", "");
        size_t end = (size_t)segments[i].p_vaddr + (size_t)segments[i].p_memsz;
        if (end > image.size) image.size = end;
    }
    if (!dynamic || !image.size || dynamic->p_vaddr > image.size || dynamic->p_memsz > image.size - dynamic->p_vaddr)
        return refuse("the library is damaged: it has no dynamic section", "");
    image.size = (image.size + 65535) & ~(size_t)65535;
    image.base = mmap(NULL, image.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (image.base == MAP_FAILED) return refuse("there is no memory for the library", "");
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD)
            memcpy(image.base + segments[i].p_vaddr, file + segments[i].p_offset, (size_t)segments[i].p_filesz);
    size_t table[40] = {0};
    const Dynamic *entry = (const Dynamic *)(image.base + dynamic->p_vaddr);
    for (size_t i = 0; i < dynamic->p_memsz / sizeof *entry && entry[i].d_tag != DT_NULL; i++)
        if (entry[i].d_tag > 0 && entry[i].d_tag < 40) table[entry[i].d_tag] = (size_t)entry[i].d_un.d_val;
    if (!table[DT_HASH] || table[DT_HASH] > image.size - 8 || table[DT_SYMTAB] > image.size ||
        table[DT_STRTAB] > image.size || table[DT_STRSZ] > image.size - table[DT_STRTAB] || !table[DT_STRSZ])
        return refuse("the library is damaged: its tables of symbols", "");
    image.count = ((const uint32_t *)(image.base + table[DT_HASH]))[1];
    image.symbols = (const Symbol *)(image.base + table[DT_SYMTAB]);
    image.names = (const char *)(image.base + table[DT_STRTAB]);
    image.names_size = table[DT_STRSZ];
    if (image.count > (image.size - table[DT_SYMTAB]) / sizeof(Symbol) || image.names[image.names_size - 1])
        return refuse("the library is damaged: its symbols", "");
    size_t relocations = HAS_ADDEND ? table[DT_RELA] : table[DT_REL];
    if (!relocate(&image, relocations, HAS_ADDEND ? table[DT_RELASZ] : table[DT_RELSZ]) ||
        !relocate(&image, table[DT_JMPREL], table[DT_PLTRELSZ]))
        return NULL;
    for (int i = 0; i < header->e_phnum; i++)
        if (segments[i].p_type == PT_LOAD && segments[i].p_flags & PF_X) {
            uintptr_t begin = (uintptr_t)(image.base + segments[i].p_vaddr), page = begin & ~(uintptr_t)4095;
            __builtin___clear_cache((char *)begin, (char *)begin + segments[i].p_memsz);
            if (mprotect((void *)page, begin - page + (size_t)segments[i].p_memsz, PROT_READ | PROT_EXEC))
                return refuse("this system does not let code run that was uploaded", "");
        }
    void *found = find(&image, wanted);
    return found ? found : refuse("the library has no function ", wanted);
}

/* ------------------------------------------------------------------------------------------ RUN */

typedef int32_t (*Kernel)(const int64_t *arguments, int64_t threads);

enum { GIVEN, RESULT, SCRATCH };
struct argument { uint64_t bytes; uint32_t kind; const struct blob *from; }; /* what is not GIVEN: zeros at first */

struct kernel {
    const struct blob *library;
    char name[65];
    uint32_t count, rounds;
    uint64_t repeats, own[MOST_ROUNDS], wall[MOST_ROUNDS];
    struct argument arguments[MOST_ARGUMENTS];
    Kernel entry;
    int64_t slots[MOST_ARGUMENTS];
};

/* Lies in memory that a child shares with its parent; what stands behind it are results, one after the other. */
struct run {
    uint32_t kernels, rounds, counts, status, detail;
    uint64_t sample, seconds, memory, results;
    char text[200];
    struct kernel all[MOST_KERNELS];
    byte outputs[];
};

static const struct blob *blob_of(const byte *hash) {
    for (size_t i = 0; i < here.blob_count; i++)
        if (!memcmp(here.blobs[i].hash, hash, HASH)) return here.blobs + i;
    return NULL;
}

struct reader { const byte *at; size_t left; int bad; };

static const byte *take(struct reader *r, size_t size) {
    static const byte nothing[64];
    if (r->left < size) {
        r->bad = 1, r->left = 0;
        return nothing;
    }
    r->at += size, r->left -= size;
    return r->at - size;
}

/* Reads a request; the reason where it makes no sense. */
static const char *read_run(struct run *run, const byte *body, size_t size) {
    struct reader r = {body, size, 0};
    uint64_t total = 0;
    run->kernels = (uint32_t)number(take(&r, 4), 4);
    run->rounds = (uint32_t)number(take(&r, 4), 4);
    run->counts = (uint32_t)number(take(&r, 4), 4);
    run->seconds = number(take(&r, 4), 4);
    run->sample = number(take(&r, 8), 8);
    run->memory = number(take(&r, 8), 8);
    if (run->kernels < 1 || run->kernels > MOST_KERNELS || run->rounds < 1 || run->rounds > MOST_ROUNDS ||
        run->seconds < 1 || run->seconds > 3600 || run->sample > 10000000000u)
        return "a run of 1 to 4 kernels, 1 to 64 rounds and 1 to 3600 seconds is wanted";
    if (run->counts && !counters) return "nothing is counted here: this server does not run under weft's plugin";
    for (uint32_t k = 0; k < run->kernels; k++) {
        struct kernel *one = run->all + k;
        one->library = blob_of(take(&r, HASH));
        memcpy(one->name, take(&r, 64), 64);
        one->count = (uint32_t)number(take(&r, 4), 4);
        if (r.bad || !one->library || one->count > MOST_ARGUMENTS) return "the request names no library that is here";
        for (uint32_t i = 0; i < one->count; i++) {
            uint32_t kind = one->arguments[i].kind = (uint32_t)number(take(&r, 4), 4);
            one->arguments[i].bytes = number(take(&r, 8), 8);
            one->arguments[i].from = blob_of(take(&r, HASH));
            if (kind == RESULT || kind == SCRATCH) one->arguments[i].from = NULL;
            else if (kind != GIVEN || !one->arguments[i].from || one->arguments[i].from->size != one->arguments[i].bytes)
                return "the request names an argument that is not here";
            if (one->arguments[i].bytes > most_bytes) return "an argument is larger than all memory we may use";
            total += one->arguments[i].bytes;
            if (kind == RESULT) run->results += one->arguments[i].bytes;
        }
    }
    if (r.bad || r.left) return "the request has another length than it says";
    return total > 4 * (uint64_t)most_bytes ? "the arguments are larger than all memory we may use" : NULL;
}

static uint64_t now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void finish(struct run *run, uint32_t status, uint32_t detail, const char *text) {
    run->status = status, run->detail = detail;
    snprintf(run->text, sizeof run->text, "%s", text);
    _exit(0);
}

/* Memory for an argument, with a page behind it that nobody may touch. */
static byte *memory_for(struct run *run, uint64_t bytes) {
    size_t page = 65536, whole = ((size_t)bytes + page - 1) / page * page;
    byte *made = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) finish(run, MEMORY, 0, "there is no memory for the arguments");
    mprotect(made + whole, page, PROT_NONE);
    return made;
}

static void call(struct run *run, struct kernel *one, uint64_t times) {
    for (uint64_t i = 0; i < times; i++) {
        int32_t code = one->entry(one->slots, 1);
        if (code) finish(run, FAULT, (uint32_t)code, "the kernel says that it failed");
    }
}

/* A system call with arguments that it does not look at: there the plugin writes its counters down. */
static void mark(void) { syscall(SYS_getpid, 0x77656674, 0x77656674); }

static void measure(struct run *run) {
    for (uint32_t k = 0; k < run->kernels; k++) {
        struct kernel *one = run->all + k;
        one->repeats = 1;
        if (run->counts) {
            mark();
            uint64_t before = counters[0], misses = counters[1];
            call(run, one, 1);
            mark();
            one->own[0] = counters[0] - before, one->wall[0] = counters[1] - misses, one->rounds = 1;
            continue;
        }
        for (;;) {
            uint64_t begin = now(CLOCK_MONOTONIC);
            call(run, one, one->repeats);
            if (now(CLOCK_MONOTONIC) - begin >= run->sample || one->repeats > 1u << 30) break;
            one->repeats *= 2;
        }
    }
    for (uint32_t round = 0; !run->counts && round < run->rounds; round++)
        for (uint32_t k = 0; k < run->kernels; k++) { /* in turns: what slows the machine down slows all of them */
            struct kernel *one = run->all + k;
            uint64_t wall = now(CLOCK_MONOTONIC), own = now(CLOCK_THREAD_CPUTIME_ID);
            call(run, one, one->repeats);
            one->own[round] = now(CLOCK_THREAD_CPUTIME_ID) - own;
            one->wall[round] = now(CLOCK_MONOTONIC) - wall;
            one->rounds = round + 1;
        }
}

static void limit(int what, uint64_t value) {
    struct rlimit to = {(rlim_t)value, (rlim_t)value};
    setrlimit(what, &to);
}

/* In the child: nothing of the connection is left here but the request and the memory for the answer. */
static void child(struct run *run) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    setpgid(0, 0);
    memset(&here.in, 0, sizeof here.in), memset(&here.out, 0, sizeof here.out);
    close(here.socket);
    munmap(served, sizeof *served * MOST_CHILDREN);
    for (int i = 1; i < 32; i++) signal(i, SIG_DFL);
    limit(RLIMIT_CORE, 0), limit(RLIMIT_FSIZE, 0), limit(RLIMIT_CPU, run->seconds + 1);
    if (run->memory) limit(RLIMIT_AS, run->memory);
#if defined(__x86_64__)
    syscall(SYS_arch_prctl, 0x1023, 18); /* Linux gives tile registers to those who ask */
#endif
    byte *out = run->outputs;
    for (uint32_t k = 0; k < run->kernels; k++) {
        struct kernel *one = run->all + k;
        void *found = place(one->library->data, one->library->size, one->name);
        if (!found) finish(run, REFUSED, 0, why);
        one->entry = (Kernel)(uintptr_t)found;
        for (uint32_t i = 0; i < one->count; i++) {
            byte *memory = memory_for(run, one->arguments[i].bytes);
            if (one->arguments[i].from) memcpy(memory, one->arguments[i].from->data, (size_t)one->arguments[i].bytes);
            one->slots[i] = (int64_t)(uintptr_t)memory;
        }
        call(run, one, 1);
        for (uint32_t i = 0; i < one->count; i++)
            if (one->arguments[i].kind == RESULT) {
                memcpy(out, (const byte *)(uintptr_t)one->slots[i], (size_t)one->arguments[i].bytes);
                out += one->arguments[i].bytes;
            }
    }
    measure(run);
    finish(run, OK, 0, "");
}

static void await(struct run *run, pid_t process, int ended) {
    struct pollfd one = {ended, POLLIN, 0};
    uint64_t end = now(CLOCK_MONOTONIC) + run->seconds * 1000000000u;
    int done = 0, status = 0;
    for (uint64_t at; !done && (at = now(CLOCK_MONOTONIC)) < end;) done = poll(&one, 1, (int)((end - at) / 1000000 + 1)) > 0;
    kill(-process, SIGKILL), kill(process, SIGKILL);
    waitpid(process, &status, 0);
    if (!done) run->status = HANG, run->detail = (uint32_t)run->seconds;
    else if (WIFSIGNALED(status)) run->status = CRASH, run->detail = (uint32_t)WTERMSIG(status);
    else if (run->status > MEMORY) run->status = CRASH, run->detail = 0;
}

static void report(const struct run *run, const struct run *asked) {
    size_t space = 256 + MOST_KERNELS * (16 + MOST_ROUNDS * 16), at = 0;
    byte *made = malloc(space + (size_t)asked->results);
    if (!made) {
        complain("there is no memory for the results");
        return;
    }
    put_number(made, run->status, 4), put_number(made + 4, run->detail, 4);
    memcpy(made + 8, run->text, 200), made[207] = 0;
    at = 208;
    for (uint32_t k = 0; run->status == OK && k < asked->kernels; k++) { /* the child may have written anything there */
        const struct kernel *one = run->all + k;
        uint32_t rounds = one->rounds <= MOST_ROUNDS ? one->rounds : MOST_ROUNDS;
        put_number(made + at, rounds, 8), put_number(made + at + 8, one->repeats, 8);
        at += 16;
        for (uint32_t i = 0; i < rounds; i++, at += 16)
            put_number(made + at, one->own[i], 8), put_number(made + at + 8, one->wall[i], 8);
    }
    if (run->status == OK) memcpy(made + at, run->outputs, (size_t)asked->results), at += (size_t)asked->results;
    answer(GOOD, made, at);
    free(made);
}

static void serve_run(const byte *body, size_t size) {
    static struct run asked;
    memset(&asked, 0, sizeof asked);
    const char *problem = read_run(&asked, body, size);
    if (problem) {
        complain(problem);
        return;
    }
    size_t whole = sizeof asked + (size_t)asked.results;
    struct run *run = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ends[2];
    if (run == MAP_FAILED || pipe2(ends, O_CLOEXEC)) {
        complain("there is no memory for the results");
        return;
    }
    memcpy(run, &asked, sizeof asked);
    run->status = MEMORY + 1;
    struct flock turn = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(here.turn, F_SETLKW, &turn) && errno == EINTR) continue;
    pid_t process = fork();
    if (process == 0) {
        close(ends[0]);
        child(run);
    }
    close(ends[1]);
    if (process > 0) await(run, process, ends[0]);
    turn.l_type = F_UNLCK;
    fcntl(here.turn, F_SETLK, &turn);
    close(ends[0]);
    if (process > 0) report(run, &asked);
    else complain("this machine makes no child");
    munmap(run, whole);
}

/* ------------------------------------------------------------------------------------------ the rest */

static void serve_put(byte *body, size_t size) {
    byte hash[HASH];
    sha_of(body, size, hash);
    if (blob_of(hash)) free(body);
    else {
        if (here.blob_count == MOST_BLOBS || here.blob_bytes + size > most_bytes) {
            for (size_t i = 0; i < here.blob_count; i++) free(here.blobs[i].data); /* the client puts them again */
            here.blob_count = here.blob_bytes = 0;
        }
        struct blob *made = here.blobs + here.blob_count++;
        memcpy(made->hash, hash, HASH);
        made->size = size, made->data = body, here.blob_bytes += size;
    }
    answer(GOOD, hash, HASH);
}

static void serve_info(void) {
    char text[400];
    int size = snprintf(text, sizeof text, "server=2\narchitecture=%s\npointer_bytes=%d\ncores=%ld\nmemory=%lld\n"
                        "most_bytes=%llu\ncounts=%d\n", architecture, (int)sizeof(void *), sysconf(_SC_NPROCESSORS_ONLN),
                        (long long)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), (unsigned long long)most_bytes,
                        counters != NULL);
    answer(GOOD, text, (size_t)size);
}

static void serve(int connection, byte *key) {
    struct timeval patience = {HANDSHAKE_SECONDS, 0};
    int on = 1;
    here.socket = connection;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int rest = 30; /* seconds of silence before a client is asked whether it is still there */
    setsockopt(connection, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(connection, IPPROTO_TCP, TCP_KEEPIDLE, &rest, sizeof rest);
    setsockopt(connection, IPPROTO_TCP, TCP_KEEPINTVL, &rest, sizeof rest);
    alarm(2 * HANDSHAKE_SECONDS); /* one that sends a byte now and then has no more time than others */
    greet(key);
    alarm(0);
    patience.tv_sec = IDLE_SECONDS;
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (;;) {
        uint32_t type;
        size_t size;
        byte *body = next_message(&type, &size);
        if (type == PUT) {
            serve_put(body, size);
            continue;
        }
        if (type == RUN) serve_run(body, size);
        else if (type == INFO) serve_info();
        else complain("there is no such message");
        free(body);
    }
}

static int read_key(const char *path, byte *key) {
    struct stat facts;
    char text[2 * HASH + 1] = {0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &facts)) return fprintf(stderr, "weft-server: there is no key file %s\n", path), 0;
    if (facts.st_mode & 077) return fprintf(stderr, "weft-server: others may read %s: chmod 600\n", path), 0;
    ssize_t size = read(file, text, 2 * HASH);
    close(file);
    for (int i = 0; i < HASH; i++) {
        unsigned value;
        if (size != 2 * HASH || sscanf(text + 2 * i, "%2x", &value) != 1)
            return fprintf(stderr, "weft-server: %s holds no key: 64 hexadecimal digits\n", path), 0;
        key[i] = (byte)value;
    }
    return 1;
}

static void open_counters(void) {
    const char *path = getenv("DEVICE_COUNTERS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (seen != MAP_FAILED) counters = seen;
    if (file >= 0) close(file);
}

/* A place for one more child; where none is free, that of somebody without a key, else the first that is left. */
static void *free_place(void) {
    static uint32_t turn;
    for (;;) {
        for (pid_t ended; (ended = waitpid(-1, NULL, WNOHANG)) > 0;)
            for (int i = 0; i < MOST_CHILDREN; i++)
                if (served[i].process == ended) served[i].process = 0;
        for (int i = 0; i < MOST_CHILDREN; i++)
            if (!served[i].process) return served[i].knows = 0, served + i;
        for (int i = 0; i < MOST_CHILDREN; i++, turn++)
            if (!served[turn % MOST_CHILDREN].knows) {
                kill(served[turn % MOST_CHILDREN].process, SIGKILL);
                turn++;
                break;
            }
        struct timespec moment = {0, 2000000};
        nanosleep(&moment, NULL);
    }
}

int main(int count, char **words) {
    const char *key_path = NULL, *address = "127.0.0.1";
    int port = 7400, option;
    byte key[HASH];
    while ((option = getopt(count, words, "k:a:p:m:l")) != -1) {
        if (option == 'k') key_path = optarg;
        else if (option == 'a') address = optarg;
        else if (option == 'p') port = atoi(optarg);
        else if (option == 'l') prctl(PR_SET_PDEATHSIG, SIGKILL);
        else if (option == 'm' && atoi(optarg) > 0) most_bytes = (size_t)atoi(optarg) << 20;
        else key_path = NULL, count = 0;
    }
    if (!key_path) return fprintf(stderr, "weft-server -k KEYFILE [-a ADDRESS] [-p PORT] [-m MEGABYTES] [-l]\n"), 2;
    if (!read_key(key_path, key)) return 1;
    open_counters();
    signal(SIGPIPE, SIG_IGN);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    char name[] = "/tmp/weft-server-XXXXXX";
    here.turn = mkostemp(name, O_CLOEXEC);
    if (here.turn < 0) return perror("weft-server: /tmp"), 1;
    unlink(name);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1 || bind(listener, (struct sockaddr *)&at, sizeof at) ||
        listen(listener, 16) || getsockname(listener, (struct sockaddr *)&at, &size))
        return fprintf(stderr, "weft-server: %s:%d: %s\n", address, port, strerror(errno)), 1;
    printf("listening on %s:%d\n", address, ntohs(at.sin_port));
    fflush(stdout);
    served = mmap(NULL, sizeof *served * MOST_CHILDREN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (served == MAP_FAILED) return perror("weft-server: memory"), 1;
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0) continue;
        mine = free_place();
        pid_t process = fork();
        if (process == 0) {
            close(listener);
            serve(connection, key);
        }
        if (process > 0) mine->process = process;
        close(connection);
    }
}
