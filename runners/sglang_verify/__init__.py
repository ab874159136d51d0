"""A runner that times verification inside SGLang's own model runner."""
