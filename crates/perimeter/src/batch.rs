//! Sending a batch.

use crate::stack::Stack;
use std::marker::PhantomData;

/// While it lives, what the calling thread sends by a stack goes to the devices together: the device is
/// told once of what many calls have sent, as `sendmmsg` and Linux's `xmit_more` do. Made by
/// [`Stack::batch`].
///
/// It pays for who answers many small messages that came at once, most of all where threads share a
/// device's queue. What is sent goes, at the latest, when
/// - the batch is dropped (the last of them, if the thread has several of this stack);
/// - the thread waits in the stack (a blocking call, [`Poll::poll`](crate::Poll::poll)) or serves it
///   ([`Stack::drive`]);
/// - 32 calls have sent something since.
///
/// So an event loop can have one for as long as it runs:
///
/// ```
#[doc = include_str!("examples/pair.txt")]
/// # client.write_all(b"a question")?;
/// server.set_nonblocking(true)?;
/// let poll = stack.poll()?;
/// poll.registry().register(&server, Token(0), Interest::READABLE)?;
/// let mut events = Events::with_capacity(64);
/// let batch = stack.batch();
/// let mut answered = 0;
/// while answered == 0 {
///     // Whatever was answered since the last poll goes now.
///     poll.poll(&mut events, None)?;
///     for _event in events.iter() {
///         let mut question = [0; 64];
///         let n = server.read(&mut question)?;
///         answered += server.write(&question[..n])?;
///     }
/// }
/// drop(batch);
/// # client.read_exact(&mut [0; 10])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **Elsewhere what was sent stays here while the thread computes, sleeps or waits for another**: drop it
/// before.
///
/// It changes nothing of what is sent, nor in which order a connection sends it. Where another thread
/// than the caller runs the connection (`connp-t`, `streams`, `squeue` and `pef` at times), that one
/// tells the device, at once.
#[must_use = "a batch ends when it is dropped"]
#[derive(Debug)]
pub struct Batch<'a> {
    stack: &'a Stack,
    /// Doorbells wait with the thread.
    _here: PhantomData<*const ()>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(stack: &'a Stack) -> Batch<'a> {
        // A stack that has ended, or is another thread's, sends nothing for this one.
        let _ = stack.engine().batch(true);
        Batch {
            stack,
            _here: PhantomData,
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let _ = self.stack.engine().batch(false);
    }
}
