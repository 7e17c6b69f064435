//! The programs under test: as they would be written for tokio's sockets, but for the import.

use perimeter_testing::Result;
use perimeter_testing::net::{TcpListener, TcpStream};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::{sleep, timeout};

/// What is wrong with the programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// The server acknowledges a deposit while it is still being written.
    AnswersFirst,
    /// The server does not look whether it has a deposit already.
    StoresAgain,
    /// The client connects again after a failure, but does not send again what was not answered.
    SendsOnce,
}

/// A disk, which keeps what was written when power fails. Writing takes a while, and is not done
/// before it is done.
#[derive(Default)]
pub struct Disk(RefCell<Vec<u64>>);

impl Disk {
    async fn store(&self, deposit: u64) {
        sleep(Duration::from_millis(4)).await;
        self.0.borrow_mut().push(deposit);
    }

    pub fn count(&self, deposit: u64) -> usize {
        self.0.borrow().iter().filter(|d| **d == deposit).count()
    }
}

/// Takes deposits, a number a line, and answers with the same number when they are safe.
pub async fn server(disk: Rc<Disk>, bug: Bug) -> Result {
    let listener = TcpListener::bind("0.0.0.0:7000").await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let disk = disk.clone();
        tokio::task::spawn_local(async move {
            // A client that goes away is nothing to fail for.
            let _ = serve(stream, &disk, bug).await;
        });
    }
}

async fn serve(mut stream: TcpStream, disk: &Disk, bug: Bug) -> Result {
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let deposit: u64 = line.parse()?;
        let answer = format!("{deposit}\n");
        if bug == Bug::AnswersFirst {
            write.write_all(answer.as_bytes()).await?;
            disk.store(deposit).await;
            continue;
        }
        if bug == Bug::StoresAgain || disk.count(deposit) == 0 {
            disk.store(deposit).await;
        }
        write.write_all(answer.as_bytes()).await?;
    }
    Ok(())
}

/// Makes deposits, one after the other, and notes those that it was told are safe.
pub async fn client(deposits: u64, told: Rc<RefCell<Vec<u64>>>, bug: Bug) -> Result {
    let mut connection: Option<BufReader<TcpStream>> = None;
    for deposit in 0..deposits {
        loop {
            let stream = match connection.take() {
                Some(stream) => stream,
                None => match TcpStream::connect("server:7000").await {
                    Ok(stream) => BufReader::new(stream),
                    Err(_) => {
                        sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            // An answer that does not come within a second does not come.
            let asked = timeout(Duration::from_secs(1), ask(stream, deposit)).await;
            if let Ok(Ok(stream)) = asked {
                connection = Some(stream);
                break;
            }
            if bug == Bug::SendsOnce {
                break;
            }
        }
        told.borrow_mut().push(deposit);
    }
    Ok(())
}

async fn ask(mut stream: BufReader<TcpStream>, deposit: u64) -> Result<BufReader<TcpStream>> {
    let line = format!("{deposit}\n");
    stream.write_all(line.as_bytes()).await?;
    let mut line = String::new();
    while line.trim().parse() != Ok(deposit) {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Err("the server has gone".into());
        }
    }
    Ok(stream)
}
