//! Instructions of eBPF (RFC 9669), and an assembler with labels.

use std::os::fd::AsRawFd;

use super::Map;

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Insn {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    off: i16,
    imm: i32,
}

/// A register: 0 is the result, 1 to 5 are a call's arguments and lost by it, 6 to 9 are kept, 10
/// is the end of the stack.
#[derive(Clone, Copy)]
pub(crate) struct Reg(pub u8);

/// The end of the stack, which grows down from it.
pub(crate) const STACK: Reg = Reg(10);

/// How much is read or written.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// Operations of 64 bits.
#[derive(Clone, Copy)]
pub(crate) enum Alu {
    Add = 0x00,
    And = 0x50,
    Shl = 0x60,
    Shr = 0x70,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Comparisons, unsigned.
#[derive(Clone, Copy)]
pub(crate) enum Cmp {
    Equal = 0x10,
    Greater = 0x20,
    NotEqual = 0x50,
}

/// Functions of the kernel.
#[derive(Clone, Copy)]
pub(crate) enum Helper {
    /// (map, key) to the value's address, or 0.
    MapLookup = 1,
    /// (frame, offset, to, length) to 0, or an error.
    SkbLoadBytes = 26,
    /// (map, index, what to return where there is nothing).
    RedirectMap = 51,
}

/// A place in a program that is jumped to.
#[derive(Clone, Copy)]
pub(crate) struct Label(usize);

/// A program in the making.
#[derive(Default)]
pub(crate) struct Asm {
    insns: Vec<Insn>,
    /// Where jumps are, and to which label.
    jumps: Vec<(usize, Label)>,
    /// Where labels are.
    places: Vec<Option<usize>>,
}

impl Asm {
    fn put(&mut self, code: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        self.insns.push(Insn {
            code,
            registers: dst.0 | src.0 << 4,
            off,
            imm,
        });
    }

    /// A label that is placed later.
    pub(crate) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The label's place is here.
    pub(crate) fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.insns.len());
    }

    /// `dst = dst op imm` (`Mov`: `dst = imm`).
    pub(crate) fn alu(&mut self, op: Alu, dst: Reg, imm: i32) {
        self.put(0x07 | op as u8, dst, Reg(0), 0, imm);
    }

    /// `dst = dst op src` (`Mov`: `dst = src`).
    pub(crate) fn alu_reg(&mut self, op: Alu, dst: Reg, src: Reg) {
        self.put(0x0f | op as u8, dst, src, 0, 0);
    }

    /// The lowest 16, 32 or 64 bits, which are in network order, as a number.
    pub(crate) fn swap_be(&mut self, dst: Reg, bits: i32) {
        self.put(0xdc, dst, Reg(0), 0, bits);
    }

    /// Reads from `off` octets behind `src`.
    pub(crate) fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.put(0x61 | size as u8, dst, src, off, 0);
    }

    /// Writes to `off` octets behind `dst`.
    pub(crate) fn store(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        self.put(0x63 | size as u8, dst, src, off, 0);
    }

    /// Writes a number to `off` octets behind `dst`.
    pub(crate) fn store_imm(&mut self, size: Size, dst: Reg, off: i16, imm: i32) {
        self.put(0x62 | size as u8, dst, Reg(0), off, imm);
    }

    /// Jumps if `dst cmp imm`.
    pub(crate) fn jump_if(&mut self, cmp: Cmp, dst: Reg, imm: i32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.put(0x05 | cmp as u8, dst, Reg(0), 0, imm);
    }

    /// Jumps if `dst cmp src`.
    pub(crate) fn jump_if_reg(&mut self, cmp: Cmp, dst: Reg, src: Reg, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.put(0x0d | cmp as u8, dst, src, 0, 0);
    }

    /// Jumps.
    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.put(0x05, Reg(0), Reg(0), 0, 0);
    }

    /// Calls the kernel.
    pub(crate) fn call(&mut self, helper: Helper) {
        self.put(0x85, Reg(0), Reg(0), 0, helper as i32);
    }

    /// The map, as calls take it.
    pub(crate) fn map(&mut self, dst: Reg, map: &Map) {
        self.wide(dst, Reg(1), map);
    }

    /// The address of the first value of an array.
    pub(crate) fn map_value(&mut self, dst: Reg, map: &Map) {
        self.wide(dst, Reg(2), map);
    }

    fn wide(&mut self, dst: Reg, kind: Reg, map: &Map) {
        self.put(0x18, dst, kind, 0, map.as_raw_fd());
        self.put(0, Reg(0), Reg(0), 0, 0);
    }

    /// Returns register 0.
    pub(crate) fn exit(&mut self) {
        self.put(0x95, Reg(0), Reg(0), 0, 0);
    }

    /// The program.
    ///
    /// # Panics
    /// A label that is jumped to has no place, or is too far.
    pub(crate) fn finish(mut self) -> Vec<Insn> {
        for (at, label) in self.jumps {
            let place = self.places[label.0].expect("a place");
            let off = place as isize - at as isize - 1;
            self.insns[at].off = i16::try_from(off).expect("a near place");
        }
        self.insns
    }
}
