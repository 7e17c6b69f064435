//! What writes the trace, in a program that the compiler has instrumented.
//!
//! The functions that the instrumentation calls are in assembly, as it would instrument whatever
//! is written in Rust. All of a simulation runs on one OS thread, and so does all that is traced.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("traced programs are built on x86-64 Linux only");

use super::Record;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether there is a trace.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// Whether accesses are to be in it.
static WANTED: AtomicBool = AtomicBool::new(false);
/// The core that goes on, as a bit; none: 0. Those from the 64th on share the last.
static GOES_ON: AtomicU64 = AtomicU64::new(0);
/// Whether accesses are in it whoever makes them.
static ALL: AtomicBool = AtomicBool::new(false);
/// Cores that do a peer's work.
static PEERS: AtomicU64 = AtomicU64::new(0);

core::arch::global_asm!(
    r#"
    .data
    .balign 16
perimeter_trace_at: .quad perimeter_trace_buffer
perimeter_trace_accesses: .byte 0
    .bss
    .balign 64
perimeter_trace_buffer: .skip 0x100000
perimeter_trace_end: .skip 64

    .text
    // Two words, into the buffer.
    .globl perimeter_trace_put
perimeter_trace_put:
    mov rax, [rip + perimeter_trace_at]
    mov [rax], rdi
    mov [rax + 8], rsi
    add rax, 16
    mov [rip + perimeter_trace_at], rax
    lea rcx, [rip + perimeter_trace_end]
    cmp rax, rcx
    jae perimeter_trace_flush
    ret

    // Writes what is in the buffer; the writing itself is not traced.
    .globl perimeter_trace_flush
perimeter_trace_flush:
    movzx eax, byte ptr [rip + perimeter_trace_accesses]
    push rax
    mov byte ptr [rip + perimeter_trace_accesses], 0
    lea rdi, [rip + perimeter_trace_buffer]
    mov rsi, [rip + perimeter_trace_at]
    sub rsi, rdi
    mov [rip + perimeter_trace_at], rdi
    call {write}
    pop rax
    mov byte ptr [rip + perimeter_trace_accesses], al
    ret

    // dil: whether accesses are in the trace from here on.
    .globl perimeter_trace_have_accesses
perimeter_trace_have_accesses:
    mov byte ptr [rip + perimeter_trace_accesses], dil
    ret

    .globl __memprof_load
__memprof_load:
    cmp byte ptr [rip + perimeter_trace_accesses], 0
    je 2f
    mov rsi, [rsp]
    jmp perimeter_trace_put
2:  ret

    .globl __memprof_store
__memprof_store:
    cmp byte ptr [rip + perimeter_trace_accesses], 0
    je 2f
    mov rsi, [rsp]
    bts rdi, 56
    jmp perimeter_trace_put
2:  ret

    // rdi: what is written, rdx: bytes; rsi: what is read, if `reads`.
    .macro perimeter_trace_block name, function, reads
    .globl \name
\name:
    cmp byte ptr [rip + perimeter_trace_accesses], 0
    je 2f
    test rdx, rdx
    je 2f
    push rdi
    push rsi
    push rdx
    .if \reads
    mov rdi, rdx
    bts rdi, 57
    mov rsi, [rsp + 24]
    call perimeter_trace_put
    mov rdi, [rsp + 8]
    mov rsi, [rsp + 24]
    call perimeter_trace_put
    .endif
    mov rdi, [rsp]
    bts rdi, 57
    mov rsi, [rsp + 24]
    call perimeter_trace_put
    mov rdi, [rsp + 16]
    bts rdi, 56
    mov rsi, [rsp + 24]
    call perimeter_trace_put
    pop rdx
    pop rsi
    pop rdi
2:  jmp \function\()@PLT
    .endm
    perimeter_trace_block __memprof_memcpy, memcpy, 1
    perimeter_trace_block __memprof_memmove, memmove, 1
    perimeter_trace_block __memprof_memset, memset, 0

    // What the instrumentation calls when the program begins.
    .globl __memprof_init
__memprof_init:
    ret
    "#,
    write = sym write,
);

unsafe extern "C" {
    fn perimeter_trace_put(first: u64, second: u64);
    fn perimeter_trace_flush();
    fn perimeter_trace_have_accesses(yes: bool);
}

/// Writes to standard output; a reader that is gone ends the process, as nobody reads the trace.
extern "C" fn write(mut from: *const u8, mut len: usize) {
    while len > 0 {
        // SAFETY: the caller's buffer has `len` bytes at `from`, and nobody writes them meanwhile.
        let n = unsafe { libc::write(libc::STDOUT_FILENO, from.cast(), len) };
        if n < 0 {
            // SAFETY: no destructor is needed by anybody.
            unsafe { libc::_exit(1) };
        }
        let n = n as usize;
        // SAFETY: within the buffer, or at its end.
        from = unsafe { from.add(n) };
        len -= n;
    }
}

pub(in crate::virt) fn is_on() -> bool {
    BEGUN.load(Relaxed)
}

pub(in crate::virt) fn note(record: Record) {
    if !is_on() {
        return;
    }
    let [first, second] = record.words();
    // SAFETY: only the simulation's thread gets here: it alone begins a trace, and notes are of
    // simulations. The function leaves registers as the ABI says.
    unsafe { perimeter_trace_put(first, second) };
    let core = GOES_ON.load(Relaxed);
    match record {
        Record::Core(core) => GOES_ON.store(1 << core.min(63), Relaxed),
        Record::Peer(true) => PEERS.store(PEERS.load(Relaxed) | core, Relaxed),
        Record::Peer(false) => PEERS.store(PEERS.load(Relaxed) & !core, Relaxed),
        _ => return,
    }
    switch_accesses();
}

/// No core goes on, until one does.
pub(in crate::virt) fn pause() {
    GOES_ON.store(0, Relaxed);
    switch_accesses();
}

/// Has accesses in the trace, or not, by who makes them from here on.
fn switch_accesses() {
    let tested = GOES_ON.load(Relaxed) & !PEERS.load(Relaxed) != 0 || ALL.load(Relaxed);
    // SAFETY: it sets a byte that only the instrumentation reads.
    unsafe { perimeter_trace_have_accesses(tested && WANTED.load(Relaxed)) };
}

/// Begins a trace, of a program whose file begins at `base`; accesses are not in it yet.
pub fn begin(base: u64) {
    BEGUN.store(true, Relaxed);
    note(Record::Base(base));
}

/// From here accesses are in the trace: those of cores that go on and do no peer's work, or `all`.
pub fn accesses(all: bool) {
    WANTED.store(is_on(), Relaxed);
    ALL.store(all, Relaxed);
    switch_accesses();
}

/// The end: what is not written yet is.
pub fn end() {
    WANTED.store(false, Relaxed);
    switch_accesses();
    if is_on() {
        // SAFETY: as for `note`.
        unsafe { perimeter_trace_flush() };
        BEGUN.store(false, Relaxed);
    }
}
