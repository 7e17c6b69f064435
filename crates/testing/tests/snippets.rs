//! What README and book show in Rust compiles: each of their blocks stands in a function here, word
//! by word, and a test holds both against each other.

use perimeter::{DhcpConfig, Stack, link::Device};
use std::fs;
use std::path::Path;
use std::time::Duration;

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

#[rustfmt::skip]
#[expect(dead_code, reason = "compiled, not run: it would need a TAP device")]
fn readme_library() -> Result {
    // README.md
    use perimeter::{Stack, link::tap::{Tap, TapConfig}};
    use std::io::{Read, Write};

    // 10.9.0.1 is this host's end of the link.
    let tap = Tap::open(&TapConfig::new("pm0").with_host_address(Some(([10, 9, 0, 1].into(), 24))))?;
    let stack = Stack::builder()
        .organization("connp-l:128")?
        .interface(tap, &["10.9.0.2/24"])?
        .build()?;
    let listener = stack.listen("10.9.0.2:80")?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        let _request = stream.read(&mut [0; 4096])?;
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello\n")?;
    }
    // end
    Ok(())
}

#[rustfmt::skip]
#[expect(dead_code, unused_variables, reason = "compiled, not run: nobody is there to connect to")]
async fn readme_tokio(stack: Stack) -> Result {
    // README.md
    use perimeter_tokio::{Net, TcpStream};

    let net = Net::new(stack);
    let listener = net.listen("10.9.0.2:80").await?;
    let (stream, peer) = listener.accept().await?;

    // A program that is written for `tokio::net` changes its imports alone.
    let _serving = net.serve_runtime(&tokio::runtime::Handle::current());
    let stream = TcpStream::connect("10.9.0.1:80").await?;
    // end
    Ok(())
}

async fn server() -> perimeter_testing::Result {
    Ok(())
}

async fn client() -> perimeter_testing::Result {
    Ok(())
}

#[rustfmt::skip]
#[expect(dead_code, reason = "compiled, not run: its programs do nothing")]
fn readme_testing() {
    // README.md, docs/book/src/embedding.md
    use perimeter_testing::{Sim, net::{TcpListener, TcpStream}, seeds};

    seeds::check(1000, |seed| {
        let mut sim = Sim::new(seed);
        sim.host("server", server);
        sim.client("client", client());
        sim.at(Duration::from_secs(2), |sim| sim.crash("server"));
        sim.at(Duration::from_secs(3), |sim| sim.restart("server"));
        sim.run()
    });
    // end
    let _used: Option<(TcpListener, TcpStream)> = None;
}

#[rustfmt::skip]
#[expect(dead_code, reason = "compiled, not run: it would need devices")]
fn book(device: impl Device + 'static, other: impl Device + 'static) -> Result {
    // docs/book/src/embedding.md
    use perimeter::{Stack, link::tap::{Tap, TapConfig}};

    // 10.9.0.1 is this host's end of the link.
    let tap = Tap::open(&TapConfig::new("pm0").with_host_address(Some(([10, 9, 0, 1].into(), 24))))?;
    let stack = Stack::builder()
        .organization("connp-l:128")?
        .interface(tap, &["10.9.0.2/24", "fd00::2/64"])?
        .build()?;
    let listener = stack.listen("10.9.0.2:80")?;
    // end
    drop(listener);
    let tap = Tap::open(&TapConfig::new("pm1"))?;
    // docs/book/src/embedding.md
    let stack = Stack::builder()
        .interface_dhcp(device, DhcpConfig::default().with_hostname("gate"))?
        .build()?;
    println!("{} for {:?}", stack.leases()[0].addr, stack.leases()[0].routers);
    // end
    // docs/book/src/embedding.md
    let stack = Stack::builder()
        .interface(tap, &["10.9.0.2/24"])?
        .route("0.0.0.0/0", Some("10.9.0.1"), 0)?
        .name_servers(&["9.9.9.9:53".parse()?, "10.9.0.1:53".parse()?])
        .build()?;
    for addr in stack.lookup_host("example.org:443")? {
        println!("{addr}");
    }
    // end
    let device = other;
    // docs/book/src/introduction.md
    let stack = Stack::builder().organization("connp-l:128")?.interface(device, &["10.9.0.2/24"])?.build()?;
    // end
    drop(stack);
    Ok(())
}

/// The lines from one that `begins` to one that is `end`, without the indentation of the first.
fn blocks(text: &str, begins: impl Fn(&str) -> bool, end: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut lines = text.lines();
    while lines.any(|l| begins(l.trim())) {
        let block: Vec<&str> = lines.by_ref().take_while(|l| l.trim() != end).collect();
        let indent = block.first().map_or(0, |l| l.len() - l.trim_start().len());
        let bare = |l: &&str| l.get(indent..).unwrap_or_default().to_owned();
        all.push(block.iter().map(bare).collect::<Vec<_>>().join("\n"));
    }
    all
}

#[test]
fn what_is_shown_compiles() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec!["README.md".to_string()];
    let book = fs::read_dir(root.join("docs/book/src")).expect("the book");
    let chapters = book.map(|f| f.expect("a file").file_name());
    files.extend(chapters.map(|f| format!("docs/book/src/{}", f.to_string_lossy())));
    let mut checked = 0;
    for file in files.iter().filter(|f| f.ends_with(".md")) {
        let text = fs::read_to_string(root.join(file)).expect(file);
        let shown = blocks(&text, |l| l.starts_with("```rust"), "```");
        let names = |l: &str| {
            l.strip_prefix("// ")
                .is_some_and(|l| l.split(", ").any(|f| f == file))
        };
        let mut here = blocks(include_str!("snippets.rs"), names, "// end");
        for block in shown {
            let at = here.iter().position(|b| *b == block);
            let at = at.unwrap_or_else(|| panic!("{file} shows what is not here:\n{block}"));
            here.remove(at);
            checked += 1;
        }
        assert!(here.is_empty(), "{file} does not show: {here:#?}");
    }
    assert_eq!(checked, 8, "blocks of Rust");
}
