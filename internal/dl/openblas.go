package dl

// OpenBLAS returns the places of OpenBLAS's library, which the environment variable env may name.
func OpenBLAS(env string) Search {
	return Search{
		Name: "OpenBLAS", Env: env,
		Files: []string{"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"},
		Dirs:  []string{"/opt/homebrew/opt/openblas/lib", "/usr/local/opt/openblas/lib"},
	}
}
