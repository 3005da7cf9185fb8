// Package must is for tests and for programs whose constructors cannot fail for the options that they
// pass.
package must

// New returns v, the result of a constructor. It panics if err is not nil:
//
//	opt := must.New(optim.NewSGD(params, nil))
func New[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
