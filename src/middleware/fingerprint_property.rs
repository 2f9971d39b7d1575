//! Two requests that a server could tell apart have two fingerprints, unless a setting says that they are one: any request,
//! under any settings, is changed in one thing at a time.

#[cfg(test)]
mod tests {
    use axum::http::{
        HeaderName, HeaderValue, Request,
        header::{CONTENT_ENCODING, CONTENT_TYPE},
    };
    use proptest::{prelude::*, sample::select};

    use super::super::{content::ContentRules, fingerprint::FingerprintRules};
    use crate::Fingerprint;

    type Pairs = Vec<(String, String)>;

    #[derive(Clone, Debug)]
    struct Asked {
        method: &'static str,
        path: String,
        query: Pairs,
        /// The media type, and its parameters as they are written.
        essence: String,
        parameters: &'static str,
        second_type: Option<&'static str>,
        encodings: Vec<String>,
        listed: [Vec<String>; 2],
        others: Vec<(&'static str, &'static str)>,
        body: Body,
    }

    #[derive(Clone, Debug)]
    enum Body {
        Bytes(Vec<u8>),
        Form(Pairs),
        Json(Json),
        JsonRpc { calls: Vec<Call>, is_batch: bool, style: Style },
        Multipart { boundary: String, quoted: bool, pieces: Vec<String> },
    }

    #[derive(Clone, Debug)]
    struct Json {
        style: Style,
        members: Pairs,
    }

    #[derive(Clone, Debug)]
    struct Call {
        id: Option<&'static str>,
        params: Pairs,
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Style {
        Compact,
        Spaced,
    }

    fn object(members: &Pairs, style: Style) -> String {
        let space = if style == Style::Spaced { " \n" } else { "" };
        let members = members.iter().map(|(name, value)| format!("{space}\"{name}\"{space}:{value}"));
        format!("{{{}{space}}}", members.collect::<Vec<_>>().join(","))
    }

    fn encoded(pairs: &Pairs) -> String {
        pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
    }

    impl Call {
        fn text(&self, style: Style) -> String {
            let mut members = vec![("jsonrpc".to_owned(), "\"2.0\"".to_owned())];
            members.extend(self.id.map(|id| ("id".to_owned(), id.to_owned())));
            members.push(("method".to_owned(), "\"m\"".to_owned()));
            members.push(("params".to_owned(), object(&self.params, style)));
            object(&members, style)
        }
    }

    impl Body {
        fn bytes(&self) -> Vec<u8> {
            match self {
                Self::Bytes(bytes) => bytes.clone(),
                Self::Form(pairs) => encoded(pairs).into_bytes(),
                Self::Json(json) => object(&json.members, json.style).into_bytes(),
                Self::JsonRpc { calls, is_batch: false, style } => calls[0].text(*style).into_bytes(),
                Self::JsonRpc { calls, style, .. } => {
                    let calls = calls.iter().map(|call| call.text(*style));
                    format!("[{}]", calls.collect::<Vec<_>>().join(",")).into_bytes()
                }
                Self::Multipart { boundary, pieces, .. } => pieces.join(&format!("--{boundary}")).into_bytes(),
            }
        }
    }

    impl Asked {
        fn fingerprint(&self, rules: &FingerprintRules) -> Fingerprint {
            let query = if self.query.is_empty() { String::new() } else { format!("?{}", encoded(&self.query)) };
            let mut request = Request::builder().method(self.method).uri(format!("/{}{query}", self.path));
            let boundary = match &self.body {
                Body::Multipart { boundary, quoted: true, .. } => format!("; boundary=\"{boundary}\""),
                Body::Multipart { boundary, .. } => format!("; boundary={boundary}"),
                _ => String::new(),
            };
            let field = |value: &str| HeaderValue::from_str(value).expect("a field value");
            if !self.essence.is_empty() {
                request = request.header(CONTENT_TYPE, format!("{}{}{boundary}", self.essence, self.parameters));
            }
            if let Some(second) = self.second_type {
                request = request.header(CONTENT_TYPE, second);
            }
            for coding in &self.encodings {
                request = request.header(CONTENT_ENCODING, field(coding));
            }
            for (name, lines) in LISTED.iter().zip(&self.listed) {
                for line in lines {
                    request = request.header(*name, field(line));
                }
            }
            for (name, value) in &self.others {
                request = request.header(*name, *value);
            }
            rules.of(&request.body(()).expect("a request").into_parts().0, &self.body.bytes())
        }

        fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
            let mut changed = self.clone();
            change(&mut changed);
            changed
        }
    }

    const LISTED: [&str; 2] = ["x-a", "x-b"];
    /// The last two are not what their doubles print.
    const VALUES: [&str; 6] = ["0", "1", "\"v\"", "[1,2]", "9007199254740993", "1234567890123456.71"];
    const IDS: [&str; 6] = ["1", "2", "-7.5", "\"a\"", "\"\\u0061\\\"b\"", "12345678901234567890123"];

    fn asked() -> impl Strategy<Value = Asked> {
        let text = || "[a-c/]{0,3}";
        let lines = || prop::collection::vec("(x-a|x-b|[a-c]{0,2})", 0..3);
        let head = (select(vec!["POST", "PATCH"]), text(), pairs(), prop::collection::vec("(gzip|br|x?)", 0..2));
        let second_type = prop::option::weighted(0.2, select(vec!["text/plain; a=b", "application/b+json"]));
        let types = (select(vec!["", "; charset=utf-8"]), second_type);
        (head, types, lines(), lines(), content()).prop_map(
            |((method, path, query, encodings), (parameters, second_type), a, b, (essence, body))| Asked {
                method,
                path,
                query,
                essence: essence.to_owned(),
                parameters,
                second_type,
                encodings,
                listed: [a, b],
                others: vec![("date", "Thu, 01 Jan 2026 00:00:00 GMT"), ("accept", "text/html")],
                body,
            },
        )
    }

    fn pairs() -> impl Strategy<Value = Pairs> {
        prop::collection::vec(("(a|b|%61|%ff|%fe)", "[1-3]{0,2}"), 0..4)
    }

    fn members() -> impl Strategy<Value = Pairs> {
        let values = || select(VALUES.to_vec()).prop_map(str::to_owned);
        (values(), values()).prop_map(|(a, b)| vec![("a".to_owned(), a), ("b".to_owned(), b)])
    }

    fn content() -> impl Strategy<Value = (&'static str, Body)> {
        let style = || select(vec![Style::Compact, Style::Spaced]);
        let json = (style(), members()).prop_map(|(style, members)| Body::Json(Json { style, members }));
        let call = (prop::option::of(select(IDS.to_vec())), members()).prop_map(|(id, params)| Call { id, params });
        let calls = (prop::collection::vec(call, 1..3), any::<bool>(), style())
            .prop_map(|(calls, is_batch, style)| Body::JsonRpc { calls, is_batch, style });
        let piece = "(\r\n\r\n[a-z-]{0,3}\r\n|\r\nName: [a-z]\r\n\r\n[a-z]{0,2}\r\n|\r\n\r\n--inner\r\n\n\r\n)";
        let multipart =
            ("Z[a-zA-Z]{0,69}", any::<bool>(), prop::collection::vec(piece, 1..4), "(x\r\n)?", "(--|--\r\nx?)")
                .prop_map(|(random, quoted, parts, before, after)| {
                    let pieces = std::iter::once(before).chain(parts).chain([after]).collect();
                    Body::Multipart { boundary: random, quoted, pieces }
                });
        let bytes = prop::collection::vec(any::<u8>(), 0..4).prop_map(Body::Bytes);
        prop_oneof![
            (select(vec!["", "text/plain", "application/json", "application/x-www-form-urlencoded"]), bytes),
            (Just("application/x-www-form-urlencoded"), pairs().prop_map(Body::Form)),
            (select(vec!["application/json", "application/a+json"]), json),
            (select(vec!["application/json", "application/a+json"]), calls),
            (select(vec!["multipart/form-data", "multipart/mixed"]), multipart),
        ]
    }

    /// What a server can tell apart, whatever the settings are.
    fn others(asked: &Asked) -> Vec<Asked> {
        let mut all = vec![
            asked.with(|asked| asked.method = "PUT"),
            asked.with(|asked| asked.path.push('x')),
            asked.with(|asked| asked.query.push(("a".to_owned(), "1".to_owned()))),
            asked.with(|asked| asked.encodings.push("gzip".to_owned())),
            asked.with(|asked| asked.encodings.push("x".to_owned())),
            asked.with(|asked| asked.essence = "text/other".to_owned()),
            asked.with(|asked| asked.second_type = Some("application/a+json")),
        ];
        for (from, to) in [(0, 1), (1, 0)] {
            all.push(asked.with(|asked| asked.listed[from].push(String::new())));
            if let Some(line) = asked.listed[from].last() {
                all.push(asked.with(|asked| asked.listed[from].push(line.clone())));
                let moved = asked.with(|asked| {
                    let line = asked.listed[from].pop();
                    asked.listed[to].extend(line);
                });
                all.push(moved);
            }
        }
        for (at, (name, value)) in asked.query.iter().enumerate() {
            all.push(asked.with(|asked| asked.query[at].1.push('4')));
            all.push(asked.with(|asked| asked.query[at].0 = format!("{name}%20")));
            if !value.is_empty() {
                // A byte goes from one part to the next.
                all.push(
                    asked.with(|asked| asked.query[at] = (format!("{name}{}", &value[..1]), value[1..].to_owned())),
                );
            }
        }
        all.extend(swaps(&asked.query, true).map(|query| asked.with(|asked| asked.query = query)));
        let body = |body: Body| asked.with(|asked| asked.body = body);
        if let Some(shorter) = asked.path.get(1..) {
            all.push(asked.with(|asked| asked.path = shorter.to_owned()));
        }
        match &asked.body {
            Body::Bytes(bytes) => {
                all.push(body(Body::Bytes([&**bytes, b"x"].concat())));
                all.extend(bytes.split_first().map(|(_, rest)| body(Body::Bytes(rest.to_vec()))));
            }
            Body::Form(pairs) => {
                all.push(body(Body::Form([&**pairs, &[("a".to_owned(), "1".to_owned())]].concat())));
                all.extend(swaps(pairs, true).map(Body::Form).map(body));
                for at in 0..pairs.len() {
                    let mut changed = pairs.clone();
                    changed[at].1.push('4');
                    all.push(body(Body::Form(changed)));
                }
            }
            Body::Json(json) => all
                .extend(other_members(&json.members).map(|members| body(Body::Json(Json { members, ..json.clone() })))),
            Body::JsonRpc { calls, is_batch, style } => {
                let mut with =
                    |calls: Vec<Call>| all.push(body(Body::JsonRpc { calls, is_batch: *is_batch, style: *style }));
                for (n, call) in calls.iter().enumerate().take(if *is_batch { calls.len() } else { 1 }) {
                    let mut change = |call: Call| {
                        let mut changed = calls.clone();
                        changed[n] = call;
                        with(changed);
                    };
                    for params in other_members(&call.params) {
                        change(Call { params, ..call.clone() });
                    }
                    change(Call { id: Some("null"), ..call.clone() });
                    change(Call { id: if call.id.is_some() { None } else { Some("1") }, ..call.clone() });
                }
                all.push(body(Body::JsonRpc { calls: calls.clone(), is_batch: !is_batch, style: *style }));
            }
            Body::Multipart { boundary, quoted, pieces } => {
                let mut with =
                    |pieces| all.push(body(Body::Multipart { boundary: boundary.clone(), quoted: *quoted, pieces }));
                for at in 0..pieces.len() {
                    let mut changed = pieces.clone();
                    changed[at] = if at == 0 { "y\r\n".to_owned() } else { format!("{}y\r\n", pieces[at]) };
                    with(changed);
                    let mut swapped = pieces.clone();
                    swapped.swap(at, pieces.len().min(at + 2) - 1);
                    if swapped != *pieces {
                        with(swapped);
                    }
                }
                with([&**pieces, &["--".to_owned()]].concat());
                with(pieces[..pieces.len() - 1].to_vec());
                // The whole body as it is, under another boundary.
                all.push(body(Body::Multipart {
                    boundary: format!("{boundary}x"),
                    quoted: *quoted,
                    pieces: vec![pieces.join(&format!("--{boundary}"))],
                }));
            }
        }
        all
    }

    /// The members with another value, or none.
    fn other_members(members: &Pairs) -> impl Iterator<Item = Pairs> {
        let with = |value: &str| vec![members[0].clone(), ("b".to_owned(), value.to_owned())];
        let others = VALUES.iter().filter(|value| **value != members[1].1).map(|value| with(value));
        others.chain([vec![members[0].clone()], with("null")]).collect::<Vec<_>>().into_iter()
    }

    /// The pairs with two of them in each other's place: two of one name, or two of two names.
    fn swaps(pairs: &Pairs, of_one_name: bool) -> impl Iterator<Item = Pairs> {
        let name = |pair: &(String, String)| pair.0.replace("%61", "a").replace("%fe", "%ff");
        let swapped = |at: usize| {
            let mut swapped = pairs.clone();
            swapped.swap(at, at + 1);
            swapped
        };
        let places = (1..pairs.len()).map(|at| at - 1).filter(|at| pairs[*at] != pairs[*at + 1]);
        let places = places.filter(|at| (name(&pairs[*at]) == name(&pairs[*at + 1])) == of_one_name);
        places.map(swapped).collect::<Vec<_>>().into_iter()
    }

    /// What is one request under some settings: whether it is under these.
    fn retries(asked: &Asked, rules: &FingerprintRules) -> Vec<(Asked, bool)> {
        let plain = asked.encodings.join(", ").is_empty() && asked.second_type.is_none();
        let ContentRules { canonical_json, json_rpc, form_in_any_order } = rules.content;
        let other_fields = vec![("user-agent", "b"), ("if-match", "\"b\""), ("content-length", "7"), ("cookie", "b=1")];
        let mut all = vec![(asked.with(|asked| asked.others = other_fields), true)];
        let is_multipart = matches!(asked.body, Body::Multipart { .. });
        if !asked.essence.is_empty() {
            all.push((asked.with(|asked| asked.essence = asked.essence.to_uppercase()), plain || !is_multipart));
            all.push((asked.with(|asked| asked.parameters = " ;x=\"; y\""), !is_multipart));
        }
        let queries = swaps(&asked.query, false).map(|query| asked.with(|asked| asked.query = query));
        all.extend(queries.map(|other| (other, rules.query_in_any_order)));
        let mut body = |body: Body, is_one: bool| all.push((asked.with(|asked| asked.body = body), is_one && plain));
        match &asked.body {
            Body::Bytes(_) => {}
            Body::Form(pairs) => swaps(pairs, false).for_each(|pairs| body(Body::Form(pairs), form_in_any_order)),
            Body::Json(Json { style, members }) => {
                let is_one = canonical_json && is_exact(members);
                body(Body::Json(Json { style: other(*style), members: members.clone() }), is_one);
                body(Body::Json(Json { style: *style, members: members.iter().rev().cloned().collect() }), is_one);
            }
            Body::JsonRpc { calls, is_batch, style } => {
                let with = |calls: &[Call], style| Body::JsonRpc { calls: calls.to_vec(), is_batch: *is_batch, style };
                let seen = if *is_batch { calls } else { &calls[..1] };
                // An id that counts is a number like others.
                let ids_are_exact = json_rpc || seen.iter().all(|call| call.id != Some(IDS[5]));
                let is_exact = ids_are_exact && seen.iter().all(|call| is_exact(&call.params));
                body(with(calls, other(*style)), canonical_json && is_exact);
                let mut renamed = calls.clone();
                for call in renamed.iter_mut().filter(|call| call.id.is_some()) {
                    call.id = Some("\"of the second try\"");
                }
                if seen.iter().any(|call| call.id.is_some()) {
                    body(with(&renamed, *style), json_rpc);
                    body(with(&renamed, other(*style)), json_rpc && canonical_json && is_exact);
                }
            }
            Body::Multipart { boundary, quoted, pieces } => {
                for (boundary, quoted) in [("SOME-other.boundary_1", *quoted), (boundary, !quoted)] {
                    body(Body::Multipart { boundary: boundary.to_owned(), quoted, pieces: pieces.clone() }, true);
                }
            }
        }
        all
    }

    fn other(style: Style) -> Style {
        if style == Style::Compact { Style::Spaced } else { Style::Compact }
    }

    fn is_exact(members: &Pairs) -> bool {
        members.iter().all(|(_, value)| !VALUES[4..].contains(&&**value))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_a_server_could_tell_apart_is_two_requests_unless_a_setting_says_that_it_is_one(
            asked in asked(), switches in 0_u8..16,
        ) {
            let on = |bit: u8| switches & 1 << bit != 0;
            let rules = FingerprintRules {
                content: ContentRules { canonical_json: on(0), json_rpc: on(1), form_in_any_order: on(2) },
                query_in_any_order: on(3),
                headers: LISTED.map(HeaderName::from_static).to_vec(),
                ..FingerprintRules::default()
            };
            let fingerprint = asked.fingerprint(&rules);
            prop_assert_eq!(fingerprint, asked.fingerprint(&rules));
            for other in others(&asked) {
                prop_assert_ne!(fingerprint, other.fingerprint(&rules), "{:?}", other);
            }
            for (other, is_one) in retries(&asked, &rules) {
                prop_assert_eq!(fingerprint == other.fingerprint(&rules), is_one, "{:?}", other);
            }
        }
    }
}
