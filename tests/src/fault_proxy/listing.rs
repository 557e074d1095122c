//! Pages of a listing, rewritten as text. Stores differ in how they escape the quotes of a tag, so elements are found by
//! name and only their content is looked into.

use serde::Deserialize;

use super::asked::{Plus, decode};
use super::tag::{self, TagForm};

/// What a page lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cut {
    /// It says that it is the last one.
    LaterPages,
    /// The second half of its objects.
    SecondHalf,
}

/// Applies `change` to the tag of each object: its key and its tag without quotes in, what to list instead out; `None`
/// leaves the element out.
pub(super) fn map_tags(page: &str, form: TagForm, mut change: impl FnMut(&str, &str) -> Option<String>) -> String {
    let encoded = content(page, "EncodingType") == Some("url");
    map_objects(page, |object| {
        let key = content(object, "Key").unwrap_or_default();
        let key = if encoded { decode(key, Plus::IsSpace) } else { unescape(key) };
        let Some(given) = content(object, "ETag") else { return Some(object.to_owned()) };
        let given = unescape(given);
        let changed = change(&key, tag::opaque(&given)).map(|tag| form.render(&tag).replace('"', "&quot;"));
        Some(replace(object, "ETag", changed.as_deref()))
    })
}

/// The page without what `cut` takes.
pub(super) fn cut(page: &str, cut: Cut) -> String {
    match cut {
        Cut::LaterPages => {
            let whole = replace_content(page, "IsTruncated", "false");
            replace(&whole, "NextContinuationToken", None)
        }
        Cut::SecondHalf => {
            let objects = page.matches("<Contents>").count();
            let mut kept = 0;
            let half = map_objects(page, |object| {
                kept += 1;
                (kept <= objects - objects / 2).then(|| object.to_owned())
            });
            replace_content(&half, "KeyCount", &(objects - objects / 2).to_string())
        }
    }
}

fn map_objects(page: &str, mut change: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some((before, object, behind)) = element(rest, "Contents") {
        out.push_str(before);
        out.extend(change(object));
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// What is before the first such element, the element with its tags, and what is behind it.
fn element<'a>(text: &'a str, name: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = text.find(&open)?;
    let end = start + text[start..].find(&close)? + close.len();
    Some((&text[..start], &text[start..end], &text[end..]))
}

fn content<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, element, _) = element(text, name)?;
    element.strip_prefix(&format!("<{name}>"))?.strip_suffix(&format!("</{name}>"))
}

/// With this content in the first such element, or without it.
fn replace(text: &str, name: &str, with: Option<&str>) -> String {
    let Some((before, _, behind)) = element(text, name) else { return text.to_owned() };
    match with {
        Some(with) => format!("{before}<{name}>{with}</{name}>{behind}"),
        None => format!("{before}{behind}"),
    }
}

fn replace_content(text: &str, name: &str, with: &str) -> String {
    replace(text, name, Some(with))
}

fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&#34;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
        <KeyCount>3</KeyCount><NextContinuationToken>t</NextContinuationToken>\
        <Contents><Key>a%20b</Key><ETag>&quot;1&quot;</ETag></Contents>\
        <Contents><Key>c</Key><ETag>\"2\"</ETag></Contents>\
        <Contents><Key>d</Key><ETag>&#34;3&#34;</ETag></Contents></ListBucketResult>";

    #[test]
    fn tags_are_changed_by_key_however_they_are_escaped() {
        let mut seen = Vec::new();
        let page = map_tags(PAGE, TagForm::Bare, |key, tag| {
            seen.push(format!("{key}={tag}"));
            (key != "c").then(|| format!("{tag}x"))
        });
        assert_eq!(seen, ["a b=1", "c=2", "d=3"]);
        assert_eq!(page.matches("<ETag>").count(), 2);
        assert!(page.contains("<ETag>1x</ETag>") && page.contains("<ETag>3x</ETag>"), "{page}");
        let quoted = map_tags(PAGE, TagForm::Quoted, |_, tag| Some(tag.to_owned()));
        assert_eq!(quoted.matches("&quot;").count(), 6);
    }

    #[test]
    fn a_cut_page_lacks_what_was_cut_and_nothing_else() {
        let whole = cut(PAGE, Cut::LaterPages);
        assert!(whole.contains("<IsTruncated>false</IsTruncated>") && !whole.contains("NextContinuationToken"));
        assert_eq!(whole.matches("<Contents>").count(), 3);
        let half = cut(PAGE, Cut::SecondHalf);
        assert_eq!(half.matches("<Contents>").count(), 2);
        assert!(half.contains("<KeyCount>2</KeyCount>") && half.ends_with("</ListBucketResult>"), "{half}");
    }

    #[test]
    fn what_is_no_listing_stays_as_it_is() {
        for text in ["", "<Contents>", "<Error><Code>x</Code></Error>", "<Contents></Contents>"] {
            assert_eq!(map_tags(text, TagForm::Quoted, |_, _| None), text);
            cut(text, Cut::LaterPages);
        }
    }
}
