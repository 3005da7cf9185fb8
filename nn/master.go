package nn

import "github.com/goddp/goddp/autograd"

// master is a parameter's values in Float32, if those of its variable are rounded.
type master struct {
	v       *autograd.Variable
	version uint64 // of the parameter when v was set
}

// Master returns the Float32 values that the parameter's are rounded from: those that [CastWithMasters] kept,
// or [Parameter.SetMaster] set. It returns nil if there are none, or if the parameter was written since. Package
// optim takes them for the first values of its Float32 copies.
func (p *Parameter) Master() *autograd.Variable {
	if p.master.v == nil || p.master.version != p.version() {
		return nil
	}
	return p.master.v
}

// SetMaster sets what Master returns until the parameter is written, and frees what it returned before. v is
// Float32 and has the shape of Var; nil sets nothing. The parameter owns v.
func (p *Parameter) SetMaster(v *autograd.Variable) {
	if old := p.master.v; old != nil && old != v {
		old.Free()
	}
	p.master = master{v: v}
	if v != nil {
		p.master.version = p.version()
	}
}

// version changes when the parameter is written. Code writes a part by its whole.
func (p *Parameter) version() uint64 {
	if p.whole != nil {
		return p.whole.Version()
	}
	return p.Var().Version()
}
