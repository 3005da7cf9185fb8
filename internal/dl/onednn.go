package dl

// OneDNN returns the places of oneDNN's library, which the environment variable env may name. Debian numbers the file
// also by the minor version.
func OneDNN(env string) Search {
	return Search{
		Name: "oneDNN", Env: env,
		Files: []string{"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", "libdnnl.so.3.*", "libdnnl.dylib"},
		Dirs:  []string{"/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/local/opt/onednn/lib"},
	}
}
