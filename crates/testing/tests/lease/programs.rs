//! The programs under test: a server that leases one thing to one client at a time, and clients that
//! want it.

use perimeter_testing::Result;
use perimeter_testing::net::{TcpListener, TcpStream};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::{Instant, sleep, timeout};

/// How long a lease is good for.
const LEASE: Duration = Duration::from_millis(1_000);
/// How often its holder renews it, and others ask for it.
const ASK: Duration = Duration::from_millis(200);

/// What is wrong with the programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// A client counts its lease from the server's answer, not from when it asked.
    CountsFromAnswer,
    /// A client holds on to the thing while it can't reach the server.
    HoldsOn,
}

/// When clients held the thing, by their own account, in the order in which they began to.
pub type Held = Rc<RefCell<Vec<(String, Duration, Duration)>>>;

/// Who has the lease, and until when.
type Lease = Rc<RefCell<Option<(String, Instant)>>>;

/// Answers each line, a client's name, with `yours` or `taken`.
pub async fn server() -> Result {
    let listener = TcpListener::bind("0.0.0.0:5000").await?;
    let lease = Lease::default();
    loop {
        let (stream, _) = listener.accept().await?;
        let lease = lease.clone();
        tokio::task::spawn_local(async move {
            let _ = serve(stream, lease).await;
        });
    }
}

async fn serve(stream: TcpStream, lease: Lease) -> Result {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(name) = lines.next_line().await? {
        let yours = grant(&mut lease.borrow_mut(), name);
        let answer = if yours { "yours\n" } else { "taken\n" };
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// Grants or renews the lease, unless another has it.
fn grant(lease: &mut Option<(String, Instant)>, name: String) -> bool {
    let now = Instant::now();
    let free = lease
        .as_ref()
        .is_none_or(|(holder, until)| *holder == name || *until <= now);
    if free {
        *lease = Some((name, now + LEASE));
    }
    free
}

/// Gets the lease, works with the thing for a while, lets the lease run out, and so on, until it has
/// had it twice.
pub async fn client(name: &'static str, held: Held, bug: Bug) -> Result {
    let until = Rc::new(Cell::new(None));
    let holder = tokio::task::spawn_local(hold(name, until.clone(), held, bug));
    let mut connection = None;
    for _turn in 0..2 {
        // Asks until it has the lease, and then renews it for a while.
        let mut renewals = 0;
        while renewals < 10 {
            let asked = Instant::now();
            let answer = timeout(Duration::from_secs(2), ask(connection.take(), name)).await;
            // Without one it connects anew.
            if let Ok(Ok((stream, yours))) = answer {
                connection = Some(stream);
                let from = match bug {
                    Bug::CountsFromAnswer => Instant::now(),
                    _ => asked,
                };
                if yours {
                    until.set(Some(from + LEASE));
                    renewals += 1;
                }
            }
            sleep(ASK).await;
        }
        // Others may have it.
        sleep(3 * LEASE).await;
    }
    holder.abort();
    Ok(())
}

type Connection = BufReader<TcpStream>;

async fn ask(connection: Option<Connection>, name: &str) -> Result<(Connection, bool)> {
    let mut stream = match connection {
        Some(stream) => stream,
        None => BufReader::new(TcpStream::connect("server:5000").await?),
    };
    stream.write_all(format!("{name}\n").as_bytes()).await?;
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Err("the server has gone".into());
    }
    Ok((stream, line == "yours\n"))
}

/// Works with the thing while it is leased, and notes when.
async fn hold(name: &'static str, until: Rc<Cell<Option<Instant>>>, held: Held, bug: Bug) {
    const STEP: Duration = Duration::from_millis(10);
    loop {
        sleep(STEP).await;
        let Some(end) = until.get() else { continue };
        let grace = match bug {
            Bug::HoldsOn => LEASE,
            _ => Duration::ZERO,
        };
        // A step of work must end in time.
        if Instant::now() + STEP > end + grace {
            continue;
        }
        let from = perimeter_testing::elapsed();
        held.borrow_mut().push((name.to_owned(), from, from + STEP));
    }
}
