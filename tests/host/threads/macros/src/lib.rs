// SPDX-License-Identifier: GPL-2.0

//! `#[pin_data]` for sources that are compiled without the kernel.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Takes the `#[pin]` marks off the fields: nothing is initialised in place here.
#[proc_macro_attribute]
pub fn pin_data(_: TokenStream, item: TokenStream) -> TokenStream {
    strip(item)
}

fn is_mark(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group)
        if group.delimiter() == Delimiter::Bracket && group.stream().to_string() == "pin")
}

fn strip(stream: TokenStream) -> TokenStream {
    let mut out = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Punct(ref mark)
                if mark.as_char() == '#' && trees.peek().is_some_and(is_mark) =>
            {
                trees.next();
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), strip(group.stream()));
                inner.set_span(group.span());
                out.push(TokenTree::Group(inner));
            }
            other => out.push(other),
        }
    }
    out.into_iter().collect()
}
