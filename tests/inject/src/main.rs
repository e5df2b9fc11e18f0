// SPDX-License-Identifier: GPL-2.0

//! Sends datagrams of any content to an IPoIB interface, through user-space verbs on its peer's port.
//!
//! After what it was told to send it asks for the interface's address by ARP and waits for the answer:
//! datagrams of one queue pair are handled in order, so whatever came before is then done with. It asks
//! after every few frames too, or it would overrun the receive ring, and nobody counts what is lost there.

mod corpus;
mod frames;
mod verbs;

use std::io::{stdin, BufRead};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use corpus::{Ends, Mutator};
use frames::Fate;
use verbs::{Destination, Endpoint, Received, MULTICAST_QPN, SENDS};

const USAGE: &str = "\
inject OPTIONS COMMAND

  --device NAME      device to send from (rxe1)
  --gid-index N      its source GID (0)
  --to GID QPN       interface under test; a group with QPN 16777215
  --ask GID QPN      where to ask for an answer (as --to); may be given several times
  --qkey N           Q_Key of what is sent (0xb1b); questions and answers have 0xb1b
  --ip4 US THEM      addresses; eight are used, from US on
  --ip6 US THEM
  --mtu N            largest payload to send (4096)
  --reserved N       reserved half of the encapsulation header, for `ask` (0)
  --flags N          first octet of our hardware address in ARP and ND (0)
  --pad N            pad of the link-layer address option (0)
  --join MGID        receive what is sent to this group, for `receive`
  --seconds N        how long to wait for answers (120)
  --no-barrier       do not ask for an answer at the end

commands:
  corpus KIND...     send frames of these kinds: empty short low-types other-types truncated-ip wrong-ip
                     wrong-arp oversize
  frames             send the frames given on standard input, a line of hexadecimal digits each
  mutate SEED COUNT  send changed copies of good frames
  ask WHAT           arp, nd, echo4 or echo6: print the answer
  receive COUNT      print datagrams as they come, until there were so many

Prints `sent N too_short N bad_ethertype N empty N whole N asked N`, by what a receiver must make of it;
datagrams as `from QPN SGID to DGID: OCTETS`.";

/// Frames sent without asking; less than any receive ring.
const BURST: usize = SENDS;
/// How long to wait for an answer before asking again.
const PATIENCE: Duration = Duration::from_secs(5);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Options {
    device: String,
    gid_index: u8,
    to: Option<(Ipv6Addr, u32)>,
    ask: Vec<(Ipv6Addr, u32)>,
    qkey: u32,
    ip4: Option<(Ipv4Addr, Ipv4Addr)>,
    ip6: Option<(Ipv6Addr, Ipv6Addr)>,
    mtu: usize,
    reserved: u16,
    flags: u8,
    pad: u16,
    join: Option<Ipv6Addr>,
    seconds: u64,
    barrier: bool,
    command: Vec<String>,
}

fn number(text: &str) -> Outcome<u64> {
    Ok(match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => text.parse()?,
    })
}

fn pair<T: FromStr>(args: &mut impl Iterator<Item = String>) -> Outcome<(T, T)>
where
    T::Err: std::error::Error + 'static,
{
    let mut one = || args.next().ok_or("two addresses are needed");
    Ok((one()?.parse()?, one()?.parse()?))
}

fn options() -> Outcome<Options> {
    let mut o = Options {
        device: "rxe1".into(),
        gid_index: 0,
        to: None,
        ask: Vec::new(),
        qkey: 0x0b1b,
        ip4: None,
        ip6: None,
        mtu: 4096,
        reserved: 0,
        flags: 0,
        pad: 0,
        join: None,
        seconds: 120,
        barrier: true,
        command: Vec::new(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if !arg.starts_with("--") {
            o.command.push(arg);
            o.command.extend(args);
            return Ok(o);
        }
        match arg.as_str() {
            "--no-barrier" => o.barrier = false,
            "--ip4" => o.ip4 = Some(pair(&mut args)?),
            "--ip6" => o.ip6 = Some(pair(&mut args)?),
            _ => {
                let value = args.next().ok_or_else(|| format!("{arg} needs a value"))?;
                match arg.as_str() {
                    "--device" => o.device = value,
                    "--gid-index" => o.gid_index = number(&value)?.try_into()?,
                    "--to" => {
                        let qpn = args.next().ok_or("--to needs a GID and a QPN")?;
                        o.to = Some((value.parse()?, number(&qpn)?.try_into()?));
                    }
                    "--ask" => {
                        let qpn = args.next().ok_or("--ask needs a GID and a QPN")?;
                        o.ask.push((value.parse()?, number(&qpn)?.try_into()?));
                    }
                    "--qkey" => o.qkey = number(&value)?.try_into()?,
                    "--mtu" => o.mtu = number(&value)?.try_into()?,
                    "--reserved" => o.reserved = number(&value)?.try_into()?,
                    "--flags" => o.flags = number(&value)?.try_into()?,
                    "--pad" => o.pad = number(&value)?.try_into()?,
                    "--join" => o.join = Some(value.parse()?),
                    "--seconds" => o.seconds = number(&value)?,
                    _ => return Err(format!("unknown option {arg}\n{USAGE}").into()),
                }
            }
        }
    }
    Err(USAGE.into())
}

fn show(r: &Received) -> String {
    let mut octets = String::new();
    for octet in &r.payload {
        octets.extend(
            [octet >> 4, octet & 15].map(|nibble| char::from(b"0123456789abcdef"[nibble as usize])),
        );
    }
    format!("from {} {} to {}: {}", r.src_qp, r.sgid, r.dgid, octets)
}

/// What was sent, by fate.
#[derive(Default)]
struct Tally {
    sent: u64,
    fates: [u64; 4],
    asked: u64,
}

impl Tally {
    fn count(&mut self, frame: &[u8]) {
        self.sent += 1;
        self.fates[frames::fate(frame) as usize] += 1;
    }

    fn print(&self) {
        let of = |fate: Fate| self.fates[fate as usize];
        println!(
            "sent {} too_short {} bad_ethertype {} empty {} whole {} asked {}",
            self.sent,
            of(Fate::TooShort),
            of(Fate::BadEthertype),
            of(Fate::Empty),
            of(Fate::Whole),
            self.asked
        );
    }
}

/// The conversation with the interface under test.
struct Session {
    options: Options,
    endpoint: Endpoint,
    ends: Ends,
    to: Destination,
    /// Where questions go to, with the right Q_Key.
    ask: Vec<Destination>,
    tally: Tally,
}

impl Session {
    fn new(options: Options) -> Outcome<Self> {
        let mut endpoint = Endpoint::new(&options.device, 1, options.gid_index, 0x0b1b)?;
        let (gid, qpn) = options.to.ok_or("--to is needed")?;
        let (us4, them4) = options.ip4.ok_or("--ip4 is needed")?;
        let (us6, them6) = options.ip6.ok_or("--ip6 is needed")?;
        let to = endpoint.destination(gid, qpn, options.qkey)?;
        let mut ask = Vec::new();
        for &(gid, qpn) in &options.ask {
            ask.push(endpoint.destination(gid, qpn, 0x0b1b)?);
        }
        // Who is in a group answers in any order, if at all: that is nothing to wait for.
        if ask.is_empty() && qpn != MULTICAST_QPN {
            ask.push(endpoint.destination(gid, qpn, 0x0b1b)?);
        }
        let ends = Ends {
            hw: frames::hw_addr(options.flags, endpoint.qpn(), endpoint.gid()),
            us: (us4, us6),
            them: (them4, them6),
        };
        Ok(Self {
            options,
            endpoint,
            ends,
            to,
            ask,
            tally: Tally::default(),
        })
    }

    /// Sends a question until an answer comes that `wanted` takes.
    fn question<T>(
        &mut self,
        whom: usize,
        frame: Vec<u8>,
        wanted: impl Fn(&Received) -> Option<T>,
    ) -> Outcome<T> {
        let deadline = Instant::now() + Duration::from_secs(self.options.seconds);
        let frame = [frame];
        while Instant::now() < deadline {
            self.tally.asked += 1;
            for received in self.endpoint.send(&self.ask[whom], &frame)? {
                if let Some(answer) = wanted(&received) {
                    return Ok(answer);
                }
            }
            let again = Instant::now() + PATIENCE;
            while Instant::now() < again {
                match self.endpoint.receive()? {
                    Some(received) => {
                        if let Some(answer) = wanted(&received) {
                            return Ok(answer);
                        }
                    }
                    None => std::thread::sleep(Duration::from_micros(200)),
                }
            }
        }
        Err("no answer".into())
    }

    /// One of our eight addresses: an answer to an earlier question cannot be taken for one to this.
    fn us(&self, turn: u64) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.ends.us.0) + (turn % 8) as u32)
    }

    /// Asks by ARP, and waits for the answer.
    fn arp(&mut self, whom: usize) -> Outcome<Received> {
        let (us, them) = (self.us(self.tally.asked), self.ends.them.0);
        let request = frames::arp(1, (self.ends.hw, us), ([0; 20], them));
        let frame = frames::encap(frames::ARP, self.options.reserved, &request);
        self.question(whom, frame, |received| {
            match frames::arp_reply(&received.payload) {
                Some((_, from, to)) if (from, to) == (them, us) => Some(clone(received)),
                _ => None,
            }
        })
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> Outcome<()> {
        for burst in frames.chunks(BURST) {
            self.endpoint.send(&self.to, burst)?;
            burst.iter().for_each(|frame| self.tally.count(frame));
            if self.options.barrier {
                for whom in 0..self.ask.len() {
                    self.arp(whom)?;
                }
            }
        }
        Ok(())
    }

    fn mutate(&mut self, seed: u64, count: usize) -> Outcome<()> {
        let mut mutator = Mutator::new(seed, &self.ends, self.options.mtu);
        let mut left = count;
        while left > 0 {
            let n = left.min(BURST);
            let burst: Vec<_> = (0..n).map(|_| mutator.frame()).collect();
            self.send(&burst)?;
            left -= n;
        }
        Ok(())
    }

    fn ask(&mut self, what: &str) -> Outcome<()> {
        if self.ask.is_empty() {
            return Err("--ask is needed".into());
        }
        let (us, them) = (self.ends.us, self.ends.them);
        let reserved = self.options.reserved;
        let answer = match what {
            "arp" => self.arp(0)?,
            "nd" => {
                let packet = frames::solicitation(us.1, them.1, self.ends.hw, self.options.pad);
                self.question(
                    0,
                    frames::encap(frames::IPV6, reserved, &packet),
                    icmp6(136),
                )?
            }
            "echo4" => {
                // The answer goes to the queue pair that was last told for the address.
                let us = self.us(self.tally.asked);
                self.arp(0)?;
                let packet = frames::echo4(us, them.0, 1, b"reserved bits");
                self.question(
                    0,
                    frames::encap(frames::IPV4, reserved, &packet),
                    |received| {
                        let packet = received.payload.get(frames::ENCAP_LEN..)?;
                        (packet.get(9) == Some(&1) && packet.get(20) == Some(&0))
                            .then(|| clone(received))
                    },
                )?
            }
            "echo6" => {
                let packet = frames::solicitation(us.1, them.1, self.ends.hw, self.options.pad);
                let frame = frames::encap(frames::IPV6, reserved, &packet);
                self.question(0, frame, icmp6(136))?;
                let packet = frames::echo6(us.1, them.1, 1, b"reserved bits");
                self.question(
                    0,
                    frames::encap(frames::IPV6, reserved, &packet),
                    icmp6(129),
                )?
            }
            _ => return Err(format!("cannot ask for {what}").into()),
        };
        println!("{}", show(&answer));
        Ok(())
    }
}

fn clone(r: &Received) -> Received {
    Received {
        payload: r.payload.clone(),
        ..*r
    }
}

/// Takes an ICMPv6 message of this type.
fn icmp6(kind: u8) -> impl Fn(&Received) -> Option<Received> {
    move |received| {
        let packet = received.payload.get(frames::ENCAP_LEN..)?;
        let is = received.payload.starts_with(&frames::IPV6.to_be_bytes())
            && packet.get(6) == Some(&58)
            && packet.get(40) == Some(&kind);
        is.then(|| clone(received))
    }
}

fn receive(options: &Options, count: usize) -> Outcome<()> {
    let mut endpoint = Endpoint::new(&options.device, 1, options.gid_index, options.qkey)?;
    if let Some(group) = options.join {
        endpoint.join(group)?;
    }
    // The one who starts us waits for this line.
    println!("qpn {} gid {}", endpoint.qpn(), endpoint.gid());
    let deadline = Instant::now() + Duration::from_secs(options.seconds);
    let mut got = 0;
    while got < count {
        match endpoint.receive()? {
            Some(received) => {
                println!("{}", show(&received));
                got += 1;
            }
            None if Instant::now() > deadline => return Err(format!("only {got} came").into()),
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    Ok(())
}

fn read_frames() -> Outcome<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    for line in stdin().lock().lines() {
        let line = line?;
        let digits = line.trim();
        if !digits.is_ascii() || digits.len() % 2 != 0 {
            return Err(format!("not a line of octets: {digits}").into());
        }
        let frame: Result<Vec<u8>, _> = (0..digits.len() / 2)
            .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16))
            .collect();
        frames.push(frame?);
    }
    Ok(frames)
}

fn run() -> Outcome<()> {
    let options = options()?;
    let command: Vec<String> = options.command.clone();
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    if let ["receive", count] = words[..] {
        return receive(&options, number(count)?.try_into()?);
    }
    let mut session = Session::new(options)?;
    match words[..] {
        ["corpus", ref kinds @ ..] => {
            for name in kinds {
                let frames = corpus::kind(name, &session.ends, session.options.mtu)
                    .ok_or_else(|| format!("no kind {name}: {}", corpus::KINDS.join(" ")))?;
                session.send(&frames)?;
            }
        }
        ["frames"] => session.send(&read_frames()?)?,
        ["mutate", seed, count] => session.mutate(number(seed)?, number(count)?.try_into()?)?,
        ["ask", what] => session.ask(what)?,
        _ => return Err(USAGE.into()),
    }
    session.tally.print();
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inject: {error}");
            ExitCode::FAILURE
        }
    }
}
