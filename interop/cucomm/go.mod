module github.com/goddp/goddp/interop/cucomm

go 1.26.0

require (
	github.com/goddp/goddp v0.0.0
	gorgonia.org/cu v0.9.6
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/sys v0.43.0 // indirect
	gonum.org/v1/gonum v0.17.0 // indirect
)

// The two are developed, and released, together.
replace github.com/goddp/goddp => ../..
