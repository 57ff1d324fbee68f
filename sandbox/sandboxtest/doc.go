// Package sandboxtest is the suite that every sandbox driver must pass.
//
// A driver's test calls [Run] with a function that opens the driver on a directory,
// and its TestMain gives [Main] a chance first: inside the sandboxes the test binary
// is both the keeper and the program that tries the walls. Drivers that run programs
// in this process instead get [Programs].
//
// What a driver's Capabilities do not claim is not tested; the rest must hold exactly
// as package sandbox says.
package sandboxtest
