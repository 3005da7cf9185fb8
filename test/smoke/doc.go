// Package smoke holds the few multi-process jobs that every test run starts: golaunch, and ranks that train with
// goddp's packages. The packages' own tests cover the rest, most of them with -long.
package smoke
