"""The plug-in that cuts draft trees inside an SGLang server; see `plugin`."""
