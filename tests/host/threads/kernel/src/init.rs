// SPDX-License-Identifier: GPL-2.0

//! Initialisers; they make a value and move it.

/// Makes a `T`.
pub trait PinInit<T> {
    /// Makes it.
    fn make(self) -> T;
}

/// An initialiser from a function.
pub struct Init<F>(F);

impl<T, F: FnOnce() -> T> PinInit<T> for Init<F> {
    fn make(self) -> T {
        (self.0)()
    }
}

/// The initialiser that calls `make`.
pub fn init<T, F: FnOnce() -> T>(make: F) -> Init<F> {
    Init(make)
}

/// What loom has to know of before another thread gets hold of it; see [`crate::sync::atomic`].
pub trait Touch {
    /// Makes it known.
    fn touch(&self);
}

/// A field, which is looked at for [`Touch`]. Everything else is passed over by [`Pass`].
pub struct Field<'a, T>(pub &'a T);

impl<T: Touch> Field<'_, T> {
    /// Makes the field known.
    pub fn visit(&self) {
        self.0.touch();
    }
}

/// For fields that need nothing.
pub trait Pass {
    /// Does nothing.
    fn visit(&self) {}
}

impl<T> Pass for Field<'_, T> {}

/// An initialiser for a struct, field by field; `<-` takes an initialiser for the field.
#[macro_export]
macro_rules! pin_init {
    (@ $name:ident [$($done:tt)*] [$($field:ident)*]) => {
        $crate::init::init(move || {
            #[allow(unused_imports)]
            use $crate::init::Pass;
            let this = $name { $($done)* };
            $($crate::init::Field(&this.$field).visit();)*
            this
        })
    };
    (@ $name:ident [$($done:tt)*] [$($known:ident)*] $field:ident <- $value:expr, $($rest:tt)*) => {
        $crate::pin_init!(@ $name [$($done)* $field: $crate::init::PinInit::make($value),]
            [$($known)* $field] $($rest)*)
    };
    (@ $name:ident [$($done:tt)*] [$($known:ident)*] $field:ident : $value:expr, $($rest:tt)*) => {
        $crate::pin_init!(@ $name [$($done)* $field: $value,] [$($known)* $field] $($rest)*)
    };
    (@ $name:ident [$($done:tt)*] [$($known:ident)*] $field:ident, $($rest:tt)*) => {
        $crate::pin_init!(@ $name [$($done)* $field,] [$($known)* $field] $($rest)*)
    };
    ($name:ident { $($fields:tt)* }) => {
        $crate::pin_init!(@ $name [] [] $($fields)*)
    };
}
