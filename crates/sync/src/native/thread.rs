//! Threads of the operating system: start, name, core; and the kernel's random numbers.

use std::sync::OnceLock;

use super::turnstile;
use crate::platform::Thread;
use crate::policy::Priority;

/// A started thread. Dropping it lets the thread run on by itself.
#[derive(Debug)]
pub struct NativeThread(std::thread::JoinHandle<()>);

impl NativeThread {
    pub(super) fn spawn(
        priority: Priority,
        name: &str,
        core: Option<usize>,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> std::io::Result<NativeThread> {
        // A NUL can't be in a thread's name; the kernel keeps 15 bytes of the rest.
        let name: String = name.chars().filter(|&c| c != '\0').collect();
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(core) = core {
                pin(core);
            }
            if priority > Priority::ORDINARY {
                // A wish: a refusal is no error.
                turnstile::schedule(0, libc::SCHED_FIFO, i32::from(priority.level()));
            }
            body();
        })?;
        Ok(NativeThread(handle))
    }
}

impl Thread for NativeThread {
    fn join(self) -> Result<(), String> {
        self.0.join().map_err(|payload| {
            if let Some(s) = payload.downcast_ref::<&str>() {
                (*s).to_owned()
            } else if let Some(s) = payload.downcast_ref::<String>() {
                s.clone()
            } else {
                "a panic without a message".to_owned()
            }
        })
    }
}

/// Bits of a processor mask: the kernel knows at most 8192 processors.
type Mask = [u64; 128];

/// The processors that the process may run on, as it was at the first call, and no more of them
/// than its CPU quota allows. Core i of the platform is the i-th of them.
pub(super) fn cpus() -> &'static [usize] {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    CPUS.get_or_init(|| {
        let parallelism = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut cpus = allowed().unwrap_or_else(|| (0..parallelism).collect());
        cpus.truncate(parallelism);
        cpus
    })
}

/// The index of the processor that the calling thread is on.
pub(super) fn core() -> usize {
    static INDEX: OnceLock<Box<[u16]>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let cpus = cpus();
        let mut index = vec![0; cpus.iter().max().map_or(1, |n| n + 1)];
        for (i, &cpu) in cpus.iter().enumerate() {
            index[cpu] = i as u16;
        }
        index.into_boxed_slice()
    });
    // SAFETY: takes no pointer and has no precondition; a failure is a negative number.
    let cpu = unsafe { libc::sched_getcpu() };
    let index = usize::try_from(cpu).ok().and_then(|cpu| index.get(cpu));
    usize::from(index.copied().unwrap_or(0))
}

/// The calling thread's mask as a list; `None` if the kernel does not tell.
fn allowed() -> Option<Vec<usize>> {
    let mut mask: Mask = [0; 128];
    // SAFETY: the kernel writes at most the given number of bytes, the array's size, and any bit
    // pattern is a valid mask.
    let rc = unsafe {
        libc::sched_getaffinity(0, core::mem::size_of::<Mask>(), mask.as_mut_ptr().cast())
    };
    if rc != 0 {
        return None;
    }
    let set: Vec<usize> = (0..mask.len() * 64)
        .filter(|&cpu| mask[cpu / 64] & (1 << (cpu % 64)) != 0)
        .collect();
    (!set.is_empty()).then_some(set)
}

/// Binds the calling thread to core `core` modulo the number of cores. Placement is a wish: a
/// refusal (a mask that changed meanwhile, a sandbox) is no error.
fn pin(core: usize) {
    let cpus = cpus();
    let cpu = cpus[core % cpus.len()];
    let mut mask: Mask = [0; 128];
    mask[cpu / 64] = 1 << (cpu % 64);
    // SAFETY: the kernel reads the given number of bytes, the array's size.
    unsafe {
        libc::sched_setaffinity(0, core::mem::size_of::<Mask>(), mask.as_ptr().cast());
    }
}

/// CPU time of the calling thread, ns; 0 if the kernel does not tell.
pub(super) fn cpu_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is writable for the kernel's answer, and any answer is a valid value.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// 128 bits from the kernel. Waits for its pool at early boot, once.
///
/// # Panics
/// If the kernel has no random numbers: no connection is safe without.
pub(super) fn secret() -> [u64; 2] {
    let mut bytes = [0u8; 16];
    let mut have = 0;
    while have < bytes.len() {
        let rest = &mut bytes[have..];
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(n) => have += n,
            Err(_) => {
                let e = std::io::Error::last_os_error();
                assert!(
                    e.kind() == std::io::ErrorKind::Interrupted,
                    "no random numbers from the kernel: {e}"
                );
            }
        }
    }
    let (a, b) = bytes.split_at(8);
    [a, b].map(|half| u64::from_ne_bytes(half.try_into().expect("half of sixteen bytes")))
}
