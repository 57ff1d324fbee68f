package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestDomainIsPure: the domain reads no clock, draws no random number, starts no
// goroutine and does no I/O. Everything that it decides can be decided again.
func TestDomainIsPure(t *testing.T) {
	forbidden := []string{"os", "io", "net", "math/rand", "math/rand/v2", "crypto/rand", "sync", "sync/atomic", "context", "log", "log/slog"}
	clock := []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}
	for _, f := range domain(t) {
		for _, imp := range f.imports(t) {
			if slices.Contains(forbidden, imp) {
				t.Errorf("%s imports %s", f.path, imp)
			}
		}
		ast.Inspect(f.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: the domain starts a goroutine", f.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clock, n.Sel.Name) {
					t.Errorf("%s: the domain uses time.%s; take now as an argument", f.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestDomainIsDocumented: every exported identifier says what it is. A constant
// may be covered by the comment of its group.
func TestDomainIsDocumented(t *testing.T) {
	for _, f := range domain(t) {
		for _, decl := range f.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
					t.Errorf("%s: %s has no comment", f.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					checkSpec(t, f, d, spec)
				}
			}
		}
	}
}

func checkSpec(t *testing.T, f source, d *ast.GenDecl, spec ast.Spec) {
	t.Helper()
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || len(d.Specs) > 1) {
			t.Errorf("%s: %s has no comment", f.fset.Position(s.Pos()), s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
				t.Errorf("%s: %s has no comment", f.fset.Position(s.Pos()), name.Name)
			}
		}
		if d.Tok == token.VAR && !isTableOrError(s) {
			t.Errorf("%s: a variable of the package is a table or an error, and nothing else", f.fset.Position(s.Pos()))
		}
	}
}

// exportedReceiver reports whether d is a function, or a method of an exported
// type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name, ok := typ.(*ast.Ident)
	return ok && name.IsExported()
}

func isTableOrError(s *ast.ValueSpec) bool {
	if len(s.Values) != 1 {
		return false
	}
	_, isTable := s.Values[0].(*ast.CompositeLit)
	return isTable || strings.HasPrefix(s.Names[0].Name, "Err")
}

func domain(t *testing.T) []source {
	t.Helper()
	return slices.DeleteFunc(goFiles(t), func(f source) bool { return f.pkg != "." || f.test })
}
