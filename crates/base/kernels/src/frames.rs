//! What a module costs beside its instructions: the frames of its calls, and the parts of an instance of it.
//!
//! Owns the price of both, found before the module is translated. The interpreter asks one unit of fuel for a call
//! however many values the callee's frame has, all of which it fills, and none for an instance however many parts it
//! has. So a module of few instructions could take a thousand times the time that its fuel stands for.

use std::collections::BTreeSet;

use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload, ValidPayload, Validator, WasmFeatures};

use crate::limits::{FRAME_VALUES_FREE, FRAME_VALUES_PER_FUEL, LOCALS_MAX, PARTS_MAX};

/// Bytes of a page of WebAssembly.
const PAGE_BYTES: u64 = 64 << 10;

/// See the head of this file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Price {
    /// Units that each unit of the interpreter costs.
    pub(crate) unit: u64,
    /// Values of the frame of the function that is called first.
    pub(crate) entry_values: u64,
    /// Parts of an instance: what is imported, exported, made, or stored into it.
    pub(crate) parts: u64,
    /// Bytes of its memory at first.
    pub(crate) memory_bytes: u64,
}

/// Why a module is not run.
#[derive(Debug)]
pub(crate) enum TooDear {
    /// The parser says why.
    Parser(BinaryReaderError),
    /// Locals of all functions.
    Locals(u64),
    /// Parts of an instance.
    Parts(u64),
}

impl From<BinaryReaderError> for TooDear {
    fn from(error: BinaryReaderError) -> Self {
        Self::Parser(error)
    }
}

impl Price {
    /// Of a module whose function `entry` begins a run.
    pub(crate) fn of(wasm: &[u8], entry: &str) -> Result<Self, TooDear> {
        let shape = Shape::of(wasm, entry)?;
        let values = |function: &u32| shape.frames.get(function).copied().unwrap_or(0);
        let called = shape.called.iter().map(values).max().unwrap_or(0);
        let unit = 1 + called.saturating_sub(FRAME_VALUES_FREE) / FRAME_VALUES_PER_FUEL;
        let entry_values = shape.entry.as_ref().map_or(0, values);
        Ok(Self { unit, entry_values, parts: shape.parts, memory_bytes: shape.memory_bytes })
    }
}

/// What is counted of a module.
#[derive(Debug, Default)]
struct Shape {
    /// Values of the frame of each function.
    frames: std::collections::BTreeMap<u32, u64>,
    /// Functions that others may call, or this module itself by a reference.
    called: BTreeSet<u32>,
    entry: Option<u32>,
    parts: u64,
    locals: u64,
    memory_bytes: u64,
}

impl Shape {
    fn of(wasm: &[u8], entry: &str) -> Result<Self, TooDear> {
        let mut shape = Self::default();
        // First without validation, which a module with too much of something would make long.
        for payload in Parser::new(0).parse_all(wasm) {
            shape.count(&payload?, entry)?;
        }
        let mut validator = Validator::new_with_features(WasmFeatures::all());
        for payload in Parser::new(0).parse_all(wasm) {
            if let ValidPayload::Func(function, body) = validator.payload(&payload?)? {
                let index = function.index;
                let mut function = function.into_validator(Default::default());
                let values = shape.look_at(&body, &mut function)?;
                shape.frames.insert(index, values);
            }
        }
        Ok(shape)
    }

    /// Counts the parts of a section.
    fn count(&mut self, payload: &Payload<'_>, entry: &str) -> Result<(), TooDear> {
        let items = match payload {
            Payload::ImportSection(section) => section.count(),
            Payload::FunctionSection(section) => section.count(),
            Payload::TableSection(section) => section.count(),
            Payload::MemorySection(section) => {
                for memory in section.clone() {
                    self.memory_bytes = self.memory_bytes.saturating_add(memory?.initial.saturating_mul(PAGE_BYTES));
                }
                section.count()
            }
            Payload::TagSection(section) => section.count(),
            Payload::GlobalSection(section) => section.count(),
            Payload::DataSection(section) => section.count(),
            Payload::ExportSection(section) => {
                for export in section.clone() {
                    let export = export?;
                    if export.name == entry {
                        self.entry = Some(export.index);
                    }
                }
                section.count()
            }
            Payload::StartSection { func, .. } => {
                self.called.insert(*func);
                1
            }
            Payload::ElementSection(section) => {
                let mut items = 0_u32;
                for element in section.clone() {
                    items = items.saturating_add(self.count_element(element?)?);
                }
                items
            }
            Payload::CodeSectionEntry(body) => {
                for locals in body.get_locals_reader()? {
                    self.locals = self.locals.saturating_add(locals?.0.into());
                }
                0
            }
            _ => 0,
        };
        self.parts = self.parts.saturating_add(items.into());
        match (self.parts, self.locals) {
            (parts, _) if parts > PARTS_MAX => Err(TooDear::Parts(parts)),
            (_, locals) if locals > LOCALS_MAX => Err(TooDear::Locals(locals)),
            _ => Ok(()),
        }
    }

    /// One part for the segment and one for each place.
    fn count_element(&mut self, element: wasmparser::Element<'_>) -> Result<u32, TooDear> {
        use wasmparser::ElementItems::{Expressions, Functions};
        let items = match element.items {
            Functions(functions) => {
                let count = functions.count();
                for function in functions {
                    self.called.insert(function?);
                }
                count
            }
            Expressions(_, expressions) => {
                let count = expressions.count();
                for expression in expressions {
                    for operator in expression?.get_operators_reader() {
                        self.note_call(&operator?);
                    }
                }
                count
            }
        };
        Ok(items.saturating_add(1))
    }

    /// Values of a function's frame at most: constants, parameters and locals, and what it computes with.
    fn look_at<T: wasmparser::WasmModuleResources>(
        &mut self,
        body: &FunctionBody<'_>,
        function: &mut wasmparser::FuncValidator<T>,
    ) -> Result<u64, TooDear> {
        let mut reader = body.get_binary_reader();
        function.read_locals(&mut reader)?;
        let (mut height, mut constants) = (0, BTreeSet::new());
        for operator in body.get_operators_reader()?.into_iter_with_offsets() {
            let (operator, offset) = operator?;
            function.op(offset, &operator)?;
            height = height.max(function.operand_stack_height());
            self.note_call(&operator);
            constants.extend(match operator {
                Operator::I32Const { value } => Some(i64::from(value)),
                Operator::I64Const { value } => Some(value),
                Operator::F32Const { value } => Some(value.bits().into()),
                Operator::F64Const { value } => Some(value.bits().cast_signed()),
                _ => None,
            });
        }
        Ok(u64::from(function.len_locals()) + u64::from(height) + constants.len() as u64)
    }

    fn note_call(&mut self, operator: &Operator<'_>) {
        if let Operator::Call { function_index }
        | Operator::ReturnCall { function_index }
        | Operator::RefFunc { function_index } = operator
        {
            self.called.insert(*function_index);
        }
    }
}
