package nn

import "github.com/goddp/goddp/autograd"

// master holds the Float32 values of a parameter before they were rounded to 16 bits.
type master struct {
	v       *autograd.Variable
	of      *autograd.Variable // the variable whose values are rounded
	version uint64             // the version of that variable when v was set
	isTaken bool               // the caller of TakeMaster owns v
}

// Master returns the Float32 values from which the parameter was rounded. [Cast] has kept them, or
// [Parameter.SetMaster] has set them. If there are none, Master returns nil. If the parameter was written since,
// Master frees the values and returns nil. Package optim initializes its masters from the result.
func (p *Parameter) Master() *autograd.Variable {
	if m := p.master; m.v != nil && (m.of != p.written() || m.version != m.of.Version()) {
		p.SetMaster(nil)
	}
	return p.master.v
}

// KeepsMaster reports whether Master returns values, or will when the parameter is placed, and an optimizer needs them: a
// frozen parameter needs none.
func (p *Parameter) KeepsMaster() bool {
	if p.v == nil {
		return p.keepsMaster && !p.frozen
	}
	return !p.frozen && p.Master() != nil
}

// TakeMaster is [Parameter.Master], and makes the caller the owner of the result. Package optim thus keeps its masters in
// the memory of the unrounded values.
func (p *Parameter) TakeMaster() *autograd.Variable {
	v := p.Master()
	if v != nil && !p.master.isTaken {
		v = v.Detach()
		p.master.v, p.master.isTaken = v, true
	}
	return v
}

// SetMaster sets the result of Master until the parameter is written, and frees the previous one. v must be
// Float32 with the shape of Var, or nil. The parameter owns v, unless it is the result of TakeMaster.
func (p *Parameter) SetMaster(v *autograd.Variable) {
	old := p.master
	if old.v != nil && old.v != v && !old.isTaken {
		old.v.Free()
	}
	p.master, p.keepsMaster = master{}, false
	if v != nil {
		of := p.written()
		p.master = master{v, of, of.Version(), v == old.v && old.isTaken}
	}
}

// written returns the variable whose version counts writes to the parameter. For a part it is the variable of the whole.
func (p *Parameter) written() *autograd.Variable {
	if p.whole != nil {
		return p.whole
	}
	return p.Var()
}
