use super::*;

/// Returns what is detected in bytes that arrive in pieces, and how many bytes went on before that.
fn feed(pieces: &[&[u8]]) -> (Protocol, usize) {
    let mut opening = Detector::default();
    let mut waiting = Vec::new();
    let mut gone = 0;
    for piece in pieces {
        waiting.extend_from_slice(piece);
        match opening.detect(&waiting) {
            Protocol::Unknown { free } => {
                waiting.drain(..free);
                opening.note_forwarded(free);
                gone += free;
                assert_eq!(opening.has_forwarded(), gone > 0);
            }
            opens => return (opens, gone),
        }
    }
    (Protocol::Unknown { free: 0 }, gone)
}

fn whole(bytes: &[u8]) -> Protocol {
    feed(&[bytes]).0
}

fn byte_by_byte(bytes: &[u8]) -> (Protocol, usize) {
    feed(&bytes.chunks(1).collect::<Vec<_>>())
}

/// L14: whatever some server takes for a request is one, in any pieces, and no complete line of it goes on before.
#[test]
fn l14_detects_requests_in_any_spelling() {
    for line in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"get / http/1.1\r\n",
        b"gEt /\n",
        b"GET  /  HTTP/1.1\n",
        b"GET\t/\tHTTP/1.1\r\n",
        b"GET\x0b/\x0cHTTP/1.1\r\n",
        b"GET\x1c/\xa0HTTP/1.1\r\n",
        b"\r\nGET / HTTP/1.1\r\n",
        b"\n\n \tGET / HTTP/1.1\r\n",
        b"\x1cGET / HTTP/1.1\r\n",
        b"FOO / HTTP/1.1\r\n",
        b"M-SEARCH * HTTP/1.1\r\n",
        b"x-y_z.!# http://evil.test/ HTTP/1.0\n",
        b"GET http://evil.test/\r\n",
        b"GET https://evil.test/\r\n",
        b"GET //evil.test/ x\r\n",
        b"GET /\0 HTTP/1.1\r\n",
        b"GET /a\rb HTTP/1.1\r\n",
        b"GET /HTTP/1.1\r\n",
        b"CONNECT evil.test:443 HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"[GET / HTTP/1.1\r\n",
        b"\"GET\" / HTTP/1.1\r\n",
        b"/GET / HTTP/1.1\r\n",
        b"G: / HTTP/1.1\r\n",
        b"\xe9 / HTTP/1.1\r\n",
        b"\xef\xbb\xbfGET / HTTP/1.1\r\n",
        b"\0GET / HTTP/1.1\r\n",
        b"GET\0 / HTTP/1.1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n",
    ] {
        assert_eq!(whole(line), Protocol::Http, "{}", line.escape_ascii());
        let (opens, gone) = byte_by_byte(line);
        assert_eq!(opens, Protocol::Http, "{}", line.escape_ascii());
        assert!(gone < line.len() && !line[..gone].trim_ascii().contains(&b'\n'), "{gone}");
    }
    let long = [&vec![b'M'; 300_000][..], b" / HTTP/1.1\r\n"].concat();
    assert_eq!(whole(&long), Protocol::Http);
    assert_eq!(feed(&long.chunks(4000).collect::<Vec<_>>()).0, Protocol::Http);
    // The buffered bytes are bounded.
    let endless = [b"GET /", &vec![b'a'; limits::HEAD_BYTES][..]].concat();
    assert_eq!(whole(&endless), Protocol::Http);
}

/// L14: bytes that are neither TLS nor HTTP go on at once.
#[test]
fn l14_delays_no_other_protocol() {
    for line in [
        &b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"[..],
        b"SSH-2.0-Go\r\n",
        b"EHLO stage.test\r\n",
        b"get user:123\r\n",
        b"SET key value\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"CONNECT {\"verbose\":false}\r\n",
        b"CONNECT\naccept-version:1.2\n\n\0",
        b"OPTIONS rtsp://camera.test/ RTSP/1.0\r\n",
        b"NICK someone\r\n",
        b"USER anonymous\r\n",
        b"RFB 003.008\n",
        b"selector\r\n",
        b"{\"id\": 1}\n",
        b"\0\0\0\x0a\x04\xd2\x16\x2f",
        b"post office\n",
    ] {
        assert_eq!(whole(line), Protocol::Other, "{}", line.escape_ascii());
        assert_eq!(byte_by_byte(line).0, Protocol::Other, "{}", line.escape_ascii());
    }
    // These have no line end that would identify them; nothing of them waits.
    for open in [
        &b"ping"[..],
        b"<?xml version='1.0'?><stream:stream>",
        b"{\"id\": 1}",
        b"\0\0\0\x08\x04\xd2\x16\x2f",
        b"AMQP\0\0\x09\x01",
        b"\x30\x25\x02\x01\x01\x60\x07",
        b"\xff\xfb\x01",
        b"\x30\x0c\x02\x01\x01\x60\x07",
        b"0032git-upload-pack /project.git\0host=git.test\0",
        b"\r\n",
        b"hello you",
    ] {
        assert_eq!(feed(&[open]), (Protocol::Unknown { free: 0 }, open.len()), "{}", open.escape_ascii());
        assert_eq!(byte_by_byte(open).1, open.len());
    }
    // A line of text that is longer than that of any request.
    let long = [&vec![b'x'; limits::REQUEST_LINE][..], b" HTTP/"].concat();
    assert_eq!(feed(&long.chunks(4000).collect::<Vec<_>>()).0, Protocol::Other);
}

/// L14: what may begin a request waits as a whole, and the end of the stream counts as the end of the line.
#[test]
fn l14_holds_the_beginning_of_a_request() {
    for held in [
        &b"G"[..],
        b"GET",
        b"get ",
        b"GET / HTTP/1.1",
        b"POST /x",
        b"PRI * HTTP/2.0",
        b"\x80",
        b"\x80\x2e\x01",
    ] {
        assert_eq!(feed(&[held]), (Protocol::Unknown { free: 0 }, 0), "{}", held.escape_ascii());
        assert_eq!(byte_by_byte(held).1, 0);
    }
    for (bytes, opens) in [
        (&b"GET / HTTP/1.1"[..], Protocol::Http),
        (b"GET http://evil.test/", Protocol::Http),
        (b"GET", Protocol::Other),
        (b"get key", Protocol::Other),
        (b"FOO / HTTP/1.1", Protocol::Http),
        (b"ping", Protocol::Other),
        (b"", Protocol::Other),
    ] {
        let mut opening = Detector::default();
        let _ = opening.detect(bytes);
        assert_eq!(opening.finish(), opens, "{}", bytes.escape_ascii());
    }
    // A carriage return waits for the next byte.
    assert_eq!(feed(&[b"FOO x\r"]), (Protocol::Unknown { free: 0 }, 5));
    assert_eq!(feed(&[b"FOO x\r", b"y"]), (Protocol::Unknown { free: 0 }, 7));
}

/// L14: both forms of TLS are detected first.
#[test]
fn l14_detects_tls_first() {
    for bytes in [&b"\x16"[..], b"\x16\x03\x01", b"\x15not", b"\x80\x2e\x01\x03"] {
        assert_eq!(whole(bytes), Protocol::Tls);
        assert_eq!(byte_by_byte(bytes).0, Protocol::Tls);
    }
    assert_eq!(whole(b""), Protocol::Unknown { free: 0 });
}
