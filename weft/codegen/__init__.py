"""Layer 5: code generators. A lowered, flat Func goes in, text or machine code of one back end comes out."""
