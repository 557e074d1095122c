//! Everything that can be wrong with a token of a node or an operator. Whatever it is, the answer is the same.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use ed25519_dalek::Signer as _;
use http::{Method, StatusCode};
use scafo_apiserver::clock::Clock as _;

use crate::harness::{Answer, Harness, signing_key};

const HEADER: &str = r#"{"alg":"EdDSA","kid":"root"}"#;

/// Makes tokens of the admin `root`, each with a `jti` of its own.
struct Maker {
    now: i64,
    made: u128,
}

/// Whether a token is to be let in, what is particular about it, and the whole `Authorization` header.
type Row = (bool, String, String);

impl Maker {
    fn jti(&mut self) -> String {
        self.made += 1;
        URL_SAFE_NO_PAD.encode(self.made.to_be_bytes())
    }

    fn claims(&mut self) -> String {
        let (now, jti) = (self.now, self.jti());
        format!(r#"{{"sub":"root","aud":"scafo-node","iat":{now},"exp":{},"jti":"{jti}"}}"#, now + 60)
    }

    /// The claims with one of them written otherwise; an empty `value` leaves it out.
    fn claims_with(&mut self, name: &str, value: &str) -> String {
        let (now, jti) = (self.now, self.jti());
        let usual = [
            ("sub", r#""root""#.to_owned()),
            ("aud", r#""scafo-node""#.to_owned()),
            ("iat", now.to_string()),
            ("exp", (now + 60).to_string()),
            ("jti", format!("{jti:?}")),
        ];
        let written = usual.map(|(claim, usual)| (claim, if claim == name { value.to_owned() } else { usual }));
        let members: Vec<_> = written.iter().filter(|(_, value)| !value.is_empty()).collect();
        let members: Vec<_> = members.iter().map(|(claim, value)| format!("{claim:?}:{value}")).collect();
        format!("{{{}}}", members.join(","))
    }

    fn times(&mut self, iat: i64, exp: i64) -> String {
        let jti = self.jti();
        format!(r#"{{"sub":"root","aud":"scafo-node","iat":{iat},"exp":{exp},"jti":"{jti}"}}"#)
    }

    fn good(&mut self) -> String {
        let claims = self.claims();
        sign(HEADER.as_bytes(), claims.as_bytes())
    }
}

fn sign(header: &[u8], claims: &[u8]) -> String {
    sign_parts(&URL_SAFE_NO_PAD.encode(header), &URL_SAFE_NO_PAD.encode(claims))
}

/// Signs the parts as they are written.
fn sign_parts(header: &str, claims: &str) -> String {
    let signed = format!("{header}.{claims}");
    let signature = signing_key("root").sign(signed.as_bytes()).to_bytes();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn bad(what: impl Into<String>, token: &str) -> Row {
    (false, what.into(), format!("Bearer {token}"))
}

fn good(what: &str, token: &str) -> Row {
    (true, what.to_owned(), format!("Bearer {token}"))
}

/// What `alg` must not be.
const ALGORITHMS: &[&str] = &[
    "none",
    "None",
    "NONE",
    "nOnE",
    "HS256",
    "HS384",
    "HS512",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES256K",
    "ES384",
    "ES512",
    "eddsa",
    "EDDSA",
    "Eddsa",
    "EdDSA ",
    " EdDSA",
    "Ed25519",
    "Ed448",
    "",
    "EdDSA\\u0000",
    "dir",
];

/// What `kid` must not be, as JSON.
const KIDS: &[&str] = &[
    r#""""#,
    r#""Root""#,
    r#""ROOT""#,
    r#""../root""#,
    r#""root/""#,
    r#""./root""#,
    r#""root\u0000""#,
    r#""root ""#,
    r#"" root""#,
    r#""r\u043e\u043et""#,
    r#""team""#,
    r#""n1""#,
    r#""stranger""#,
    r#""-root""#,
    r#""root-""#,
    r#""root.json""#,
    r#""*""#,
    r#""%72oot""#,
    r#""root\n""#,
    "null",
    "1",
    "true",
    r#"["root"]"#,
    "{}",
];

/// What must not stand beside the two.
const MEMBERS: &[&str] = &[
    r#""crit":[]"#,
    r#""crit":["exp"]"#,
    r#""crit":null"#,
    r#""b64":false"#,
    r#""b64":true"#,
    r#""jwk":{}"#,
    r#""jku":"http://127.0.0.1:1/""#,
    r#""x5u":"http://127.0.0.1:1/""#,
    r#""x5c":[]"#,
    r#""x5t":"AA""#,
    r#""cty":"JWT""#,
    r#""zip":"DEF""#,
    r#""enc":"A128GCM""#,
    r#""epk":{}"#,
    r#""nonce":"a""#,
    r#""url":"a""#,
    r#""iss":"root""#,
    r#""typ":"JWE""#,
    r#""typ":"at+jwt""#,
    r#""typ":"""#,
    r#""typ":1"#,
    r#""alg":"EdDSA""#,
    r#""kid":"root""#,
    r#""typ":"JWT","typ":"JWT""#,
    r#""ALG":"none""#,
    r#""alg ":"none""#,
];

/// What is no header.
const WHOLES: &[&str] = &[
    "",
    "{}",
    "[]",
    "null",
    "1",
    r#""EdDSA""#,
    r#"["EdDSA","root"]"#,
    "{",
    r#"{"alg":"EdDSA"}"#,
    r#"{"kid":"root"}"#,
    r#"{"alg":"EdDSA","kid":"root",}"#,
    r#"{"alg":"EdDSA","kid":"root"}}"#,
    r#"{"alg":"EdDSA","kid":"root"}{}"#,
    "\u{feff}{\"alg\":\"EdDSA\",\"kid\":\"root\"}",
    r#"{'alg':'EdDSA','kid':'root'}"#,
    r#"{alg:"EdDSA",kid:"root"}"#,
];

fn headers(make: &mut Maker) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut row = |header: String| rows.push(bad(header.clone(), &sign(header.as_bytes(), make.claims().as_bytes())));
    for alg in ALGORITHMS {
        row(format!(r#"{{"alg":"{alg}","kid":"root"}}"#));
    }
    row(format!(r#"{{"alg":"EdDSA","kid":{:?}}}"#, "r".repeat(64)));
    for alg in ["null", "1", "true", "[]", r#"["EdDSA"]"#, "{}"] {
        row(format!(r#"{{"alg":{alg},"kid":"root"}}"#));
    }
    for kid in KIDS {
        row(format!(r#"{{"alg":"EdDSA","kid":{kid}}}"#));
    }
    for member in MEMBERS {
        row(format!(r#"{{"alg":"EdDSA","kid":"root",{member}}}"#));
    }
    for whole in WHOLES {
        row((*whole).to_owned());
    }
    rows.push(bad("no UTF-8", &sign(b"{\"alg\":\"EdDSA\",\"kid\":\"root\xff\"}", make.claims().as_bytes())));
    for (what, header) in [
        ("as it is", HEADER),
        ("a type", r#"{"alg":"EdDSA","kid":"root","typ":"JWT"}"#),
        ("a type in small letters", r#"{"typ":"jwt","kid":"root","alg":"EdDSA"}"#),
        ("white space", " { \"alg\" : \"EdDSA\" , \"kid\" : \"root\" } "),
        ("an escape", r#"{"alg":"\u0045dDSA","kid":"root"}"#),
    ] {
        rows.push(good(what, &sign(header.as_bytes(), make.claims().as_bytes())));
    }
    rows
}

fn claims(make: &mut Maker) -> Vec<Row> {
    let mut rows = Vec::new();
    for name in ["sub", "aud", "iat", "exp", "jti"] {
        for value in ["", "null", "true", "[]", "{}", r#""""#, "-1", "1.5"] {
            let claims = make.claims_with(name, value);
            rows.push(bad(claims.clone(), &sign(HEADER.as_bytes(), claims.as_bytes())));
        }
    }
    for (name, value) in odd_values(make.now) {
        let claims = make.claims_with(name, &value);
        rows.push(bad(claims.clone(), &sign(HEADER.as_bytes(), claims.as_bytes())));
    }
    for name in ["sub", "aud", "iat", "exp", "jti"] {
        let claims = make.claims();
        let value = if matches!(name, "iat" | "exp") { make.now.to_string() } else { r#""root""#.to_owned() };
        let twice = claims.replacen('{', &format!("{{{name:?}:{value},"), 1);
        rows.push(bad(twice.clone(), &sign(HEADER.as_bytes(), twice.as_bytes())));
    }
    for whole in ["", "{}", "[]", "null", "{", "\u{feff}{}"] {
        rows.push(bad(format!("claims {whole:?}"), &sign(HEADER.as_bytes(), whole.as_bytes())));
    }
    for (iat, exp, lets_in) in [
        (0, 60, true),
        (0, 1, true),
        (30, 60, true),
        (-60, -29, true),
        (0, 0, false),
        (0, 61, false),
        (0, -1, false),
        (0, 3600, false),
        (31, 60, false),
        (31, 91, false),
        (-60, -30, false),
        (-120, -60, false),
        (-86_400, -86_340, false),
        (86_400, 86_460, false),
        (-31, 30, false),
    ] {
        let claims = make.times(make.now + iat, make.now + exp);
        rows.push((lets_in, format!("{iat} {exp}"), format!("Bearer {}", sign(HEADER.as_bytes(), claims.as_bytes()))));
    }
    rows
}

/// Values that are nearly right, as JSON.
fn odd_values(now: i64) -> Vec<(&'static str, String)> {
    let exp = now + 60;
    let id = URL_SAFE_NO_PAD.encode([200_u8; 16]);
    vec![
        ("sub", r#""team""#.to_owned()),
        ("sub", r#""Root""#.to_owned()),
        ("sub", r#""root ""#.to_owned()),
        ("sub", r#"["root"]"#.to_owned()),
        ("aud", r#""scafo""#.to_owned()),
        ("aud", r#""scafo-node ""#.to_owned()),
        ("aud", r#""SCAFO-NODE""#.to_owned()),
        ("aud", r#"["scafo-node"]"#.to_owned()),
        ("aud", r#"["scafo-node","other"]"#.to_owned()),
        ("exp", format!("\"{exp}\"")),
        ("exp", format!("{exp}.0")),
        ("exp", format!("{exp}.5")),
        ("exp", "1e3".to_owned()),
        ("exp", "1.80000006e9".to_owned()),
        ("exp", "NaN".to_owned()),
        ("exp", "Infinity".to_owned()),
        ("exp", "1e400".to_owned()),
        ("exp", "9223372036854775807".to_owned()),
        ("exp", "9223372036854775808".to_owned()),
        ("exp", "-9223372036854775808".to_owned()),
        ("exp", format!("0{exp}")),
        ("exp", format!("+{exp}")),
        ("exp", format!("0x{exp:x}")),
        ("iat", format!("\"{now}\"")),
        ("iat", format!("{now}.0")),
        ("iat", "-9223372036854775808".to_owned()),
        ("jti", r#""A""#.to_owned()),
        ("jti", format!("{:?}", URL_SAFE_NO_PAD.encode([1; 15]))),
        ("jti", format!("{:?}", URL_SAFE_NO_PAD.encode([1; 17]))),
        ("jti", format!("{:?}", URL_SAFE_NO_PAD.encode([1; 32]))),
        ("jti", format!("{:?}", URL_SAFE.encode([1; 16]))),
        ("jti", format!("{:?}", STANDARD_NO_PAD.encode([0xff; 16]))),
        ("jti", format!("{:?}", format!("{}B", &id[..21]))),
        ("jti", format!("\" {id}\"")),
        ("jti", format!("{:?}", "A".repeat(3000))),
    ]
}

/// The order of the curve's group, little-endian (RFC 8032 §5.1).
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// The same signature with the order added to its second half, which a careless verifier takes for another good one.
fn malleable(signature: &[u8]) -> Vec<u8> {
    let (mut out, mut carry) = (signature.to_vec(), 0_u16);
    for (byte, order) in out[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        (*byte, carry) = ((sum & 0xff) as u8, sum >> 8);
    }
    out
}

fn signatures(make: &mut Maker) -> Vec<Row> {
    let token = make.good();
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let with = |bytes: &[u8]| format!("{signed}.{}", URL_SAFE_NO_PAD.encode(bytes));
    let mut rows = Vec::new();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        rows.push(bad(format!("signature bit {at}"), &with(&flipped)));
    }
    let other = make.good();
    let (header, rest) = signed.split_once('.').unwrap();
    let team = signing_key("team").sign(signed.as_bytes()).to_bytes();
    rows.extend([
        bad("no signature", &format!("{signed}.")),
        bad("no third part", signed),
        bad("a fourth part", &format!("{token}.")),
        bad("a fourth part", &format!("{token}.AA")),
        bad("a leading dot", &format!(".{token}")),
        bad("zeros", &with(&[0; 64])),
        bad("ones", &with(&[0xff; 64])),
        bad("the point one, and zero", &with(&[&[1][..], &[0; 63]].concat())),
        bad("one byte less", &with(&bytes[..63])),
        bad("one byte more", &with(&[&bytes[..], &[0]].concat())),
        bad("twice", &with(&[&bytes[..], &bytes].concat())),
        bad("another token's", &format!("{signed}.{}", other.rsplit_once('.').unwrap().1)),
        bad("another key's", &with(&team)),
        bad("of the claims alone", &with(&signing_key("root").sign(rest.as_bytes()).to_bytes())),
        bad("of the decoded text", &with(&signing_key("root").sign(HEADER.as_bytes()).to_bytes())),
        bad("the order added", &with(&malleable(&bytes))),
        bad("halves exchanged", &with(&[&bytes[32..], &bytes[..32]].concat())),
        bad("parts exchanged", &format!("{rest}.{header}.{signature}")),
        bad("padding", &format!("{token}=")),
        bad("padding", &format!("{token}==")),
        bad("hexadecimal", &format!("{signed}.{}", hex::encode(&bytes))),
    ]);
    // Its last character holds four bits that mean nothing; only one of the spellings is canonical (RFC 4648 §3.5).
    for last in ["B", "C", "D", "E", "P", "h", "x"] {
        if !signature.ends_with(last) {
            rows.push(bad(format!("ends in {last}"), &format!("{}{last}", &token[..token.len() - 1])));
        }
    }
    rows.push(good("as it was", &token));
    rows.push(bad("the same again", &token));
    rows
}

/// Encoded with the padding that a compact token must not have.
fn padded(json: &str) -> String {
    let spaces = if json.len().is_multiple_of(3) { " " } else { "" };
    URL_SAFE.encode(format!("{json}{spaces}"))
}

/// Without the padding, and with bits in the last character that belong to no byte.
fn unclean(padded: &str) -> String {
    let text = padded.trim_end_matches('=');
    format!("{}_", &text[..text.len() - 1])
}

fn spellings(make: &mut Maker) -> Vec<Row> {
    let claims = make.claims();
    let (header, body) = (URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(&claims));
    let (padded, padded_claims) = (padded(HEADER), padded(&claims));
    let token = make.good();
    let cut = token.len() / 2;
    vec![
        bad("a padded header", &sign_parts(&padded, &body)),
        bad("padded claims", &sign_parts(&header, &padded_claims)),
        bad("bits after the end", &sign_parts(&unclean(&padded), &body)),
        bad(
            "the other alphabet",
            &sign_parts(&STANDARD_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"root","typ":"???>>>"}"#), &body),
        ),
        bad("a line break", &sign_parts(&format!("{}%0A{}", &header[..9], &header[9..]), &body)),
        bad("not encoded", &sign_parts("{}", "{}")),
        bad("small letters", &token.to_lowercase()),
        bad("capitals", &token.to_uppercase()),
        bad("cut", &token[..cut]),
        bad("only the end", &token[cut..]),
        bad("a space within", &format!("{} {}", &token[..cut], &token[cut..])),
        bad("quoted", &format!("\"{token}\"")),
        bad("two tokens", &format!("{token},{token}")),
        bad("very long", &format!("{}.{}", "A".repeat(4096), token)),
        bad("dots", ".."),
        bad("nothing", ""),
        (false, "another scheme".to_owned(), format!("Basic {token}")),
        (false, "another scheme".to_owned(), format!("Token {token}")),
        (false, "no space".to_owned(), format!("Bearer{token}")),
        (false, "no scheme".to_owned(), token.clone()),
        (false, "a colon".to_owned(), format!("Bearer: {token}")),
        (false, "twice".to_owned(), format!("Bearer Bearer {token}")),
        (true, "a small scheme and two spaces".to_owned(), format!("bearer  {token}")),
    ]
}

#[tokio::test]
async fn of_hundreds_of_changed_tokens_only_the_legal_ones_pass_and_every_refusal_is_the_same() {
    let harness = Harness::start().await;
    harness.registry.world().state = serde_json::json!({});
    let mut make = Maker { now: harness.clock.wall().as_seconds(), made: 0 };
    let mut rows = headers(&mut make);
    rows.extend(claims(&mut make));
    rows.extend(signatures(&mut make));
    rows.extend(spellings(&mut make));
    let wrong = rows.iter().filter(|(lets_in, ..)| !lets_in).count();
    assert!(wrong >= 250, "{wrong}");
    let usual = harness.send(Method::GET, "/v1/state", &[], "").await;
    assert_eq!((usual.status, usual.problem().as_str()), (StatusCode::UNAUTHORIZED, "auth-invalid"));
    let mut wrongly = Vec::new();
    for (lets_in, what, authorization) in &rows {
        let answer = harness.get("/v1/state", authorization).await;
        let same = |answer: &Answer| {
            (answer.status, &answer.body) == (usual.status, &usual.body)
                && answer.headers.keys().eq(usual.headers.keys())
        };
        if *lets_in {
            if answer.status != StatusCode::OK {
                wrongly.push(format!("refused: {what}"));
            }
            continue;
        }
        // Where workloads may call too, and nothing else differs.
        let headers = [("authorization", authorization.as_str())];
        let deploy = harness.send(Method::POST, "/v1/applications/shop/deploys", &headers, "").await;
        if !same(&answer) || !same(&deploy) {
            wrongly.push(format!("{} and {}: {what}", answer.status, deploy.status));
        }
    }
    assert!(wrongly.is_empty(), "{wrongly:#?}");
    assert!(harness.registry.world().prepared.is_empty());
}
