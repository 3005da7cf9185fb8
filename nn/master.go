package nn

import "github.com/goddp/goddp/autograd"

// master holds the Float32 values of a parameter from before they were rounded to 16 bits.
type master struct {
	v       *autograd.Variable
	of      *autograd.Variable // the variable whose values are rounded
	version uint64             // of that variable when v was set
}

// Master returns the Float32 values that the parameter's are rounded from: those that [CastWithMasters] kept,
// or [Parameter.SetMaster] set. It returns nil if there are none. If the parameter was written since, Master frees
// them and returns nil. Package optim takes them for the first values of its Float32 copies.
func (p *Parameter) Master() *autograd.Variable {
	if m := p.master; m.v != nil && (m.of != p.written() || m.version != m.of.Version()) {
		p.SetMaster(nil)
	}
	return p.master.v
}

// SetMaster sets what Master returns until the parameter is written, and frees what was set before. v is
// Float32 and has the shape of Var; nil sets nothing. The parameter owns v.
func (p *Parameter) SetMaster(v *autograd.Variable) {
	if old := p.master.v; old != nil && old != v {
		old.Free()
	}
	p.master = master{}
	if v != nil {
		of := p.written()
		p.master = master{v, of, of.Version()}
	}
}

// written returns the variable that code writes to write the parameter: for a part, that of the whole.
func (p *Parameter) written() *autograd.Variable {
	if p.whole != nil {
		return p.whole
	}
	return p.Var()
}
